"""The bearer key: which keys are valid, and whether a request carries one."""

from hashlib import sha256

from flask import request

from errors import ServiceError

# What a 401 says in WWW-Authenticate: the kind of key that is wanted.
CHALLENGE = 'Bearer realm="petstore"'


def key_digests(setting: object) -> frozenset[bytes]:
    """Return the SHA-256 digests of the keys in a comma-separated list.

    Blank ones are left out. ValueError where no key remains, or one can never be sent.
    """
    if not isinstance(setting, str):
        raise ValueError("it must be a string of keys, separated by commas")
    keys = [key.strip() for key in setting.split(",") if key.strip()]
    if not keys:
        raise ValueError("it has no key; set it to one or more, separated by commas")
    for number, key in enumerate(keys, 1):
        # No header can carry a line break (RFC 9110, section 5.5), and nobody types
        # the byte order mark that an editor has left.
        if not key.isprintable():
            reason = "has a character that no client can send; separate keys by commas"
            raise ValueError(f"key {number} {reason}")
    return frozenset(sha256(key.encode()).digest() for key in keys)


def require_key(digests: frozenset[bytes]) -> None:
    """Raise the 401 that applies unless the request carries a valid key (RFC 6750).

    Comparing the keys themselves would end at the first character that differs: the
    time taken would tell how much of a guess is right. Digests of keys that begin alike
    do not begin alike, so that the time of comparing these tells nothing.
    """
    # request.authorization would cut a key in two at a "=" in its middle.
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    key = key.strip(" ")
    if scheme.lower() != "bearer" or not key:
        message = "Send an API key in the header 'Authorization: Bearer <API_KEY>'."
        headers = [("WWW-Authenticate", CHALLENGE)]
        raise ServiceError("missing_api_key", message, 401, headers)
    # The server turns each byte of a header into one character (Latin-1, PEP 3333).
    # This turns them back into the bytes that came: UTF-8, as in key_digests.
    if sha256(key.encode("latin-1")).digest() not in digests:
        message = (
            "The API key is not valid. Send one that this service was started with."
        )
        headers = [("WWW-Authenticate", f'{CHALLENGE}, error="invalid_token"')]
        raise ServiceError("invalid_api_key", message, 401, headers)
