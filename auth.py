"""The API keys: which are valid, and whether a request carries one of them."""

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

from flask import request

from errors import ServiceError

# The challenge in the WWW-Authenticate header of every 401 (RFC 6750, section 3).
CHALLENGE = 'Bearer realm="petstore"'


def key_digests(setting: object) -> list[bytes]:
    """Return the SHA-256 digests of the keys in a comma-separated list.

    Raise ValueError if there is no key, or if a key has a character that is not
    printable.
    """
    if not isinstance(setting, str):
        raise ValueError("it must be a string of keys, separated by commas")
    keys = [key.strip() for key in setting.split(",") if key.strip()]
    if not keys:
        raise ValueError("it has no key; set it to one or more, separated by commas")
    for number, key in enumerate(keys, 1):
        # A header cannot contain a line break (RFC 9110, section 5.5). A byte order
        # mark comes from an editor, and is not meant as part of the key.
        if not key.isprintable():
            reason = "has a character that is not printable, such as a line break"
            raise ValueError(f"key {number} {reason}; separate keys by commas")
    return [sha256(key.encode()).digest() for key in keys]


def require_key(digests: Sequence[bytes]) -> None:
    """Raise ServiceError (401) unless the request carries one of the keys."""
    # request.authorization would misread a key that contains "=".
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    key = key.strip(" ")
    if scheme.lower() != "bearer" or not key:
        message = "Send an API key in the header 'Authorization: Bearer <API_KEY>'."
        headers = [("WWW-Authenticate", CHALLENGE)]
        raise ServiceError("missing_api_key", message, 401, headers)
    # WSGI decodes headers as Latin-1 (PEP 3333): the key "é" arrives as "Ã©". Encoding
    # it again returns the bytes that the client sent.
    digest = sha256(key.encode("latin-1")).digest()
    if not any(compare_digest(digest, valid) for valid in digests):
        message = "The API key is not valid. Send one of the keys of this service."
        headers = [("WWW-Authenticate", f'{CHALLENGE}, error="invalid_token"')]
        raise ServiceError("invalid_api_key", message, 401, headers)
