"""The bearer key: which keys are valid, and whether a request carries one."""

import os
import re
from hashlib import sha256

from flask import request

from errors import ServiceError

CHALLENGE = 'Bearer realm="petstore"'

# Control characters cannot stand in a header (RFC 9110, section 5.5). A byte order mark
# is what an editor has left, and lone surrogates but for those that stand for a byte
# (PEP 383) are no text: nobody sends them.
UNSENDABLE = re.compile("[\x00-\x1f\x7f\ufeff\ud800-\udc7f\udd00-\udfff]")


def key_digests(setting: object) -> frozenset[bytes]:
    """Return the SHA-256 digests of the keys in a comma-separated list.

    Blank ones are left out. ValueError where no key remains, or one can never be sent.
    """
    if not isinstance(setting, str):
        raise ValueError("API_KEYS must be a string of keys, separated by commas")
    keys = [key.strip() for key in setting.split(",") if key.strip()]
    if not keys:
        raise ValueError(
            "PETSTORE_API_KEYS has no key; set it to one or more, separated by commas"
        )
    for number, key in enumerate(keys, 1):
        if found := UNSENDABLE.search(key):
            character = f"U+{ord(found[0]):04X}"
            raise ValueError(
                f"PETSTORE_API_KEYS: key {number} contains {character}, "
                "which no client can send"
            )
    return frozenset(sha256(os.fsencode(key)).digest() for key in keys)


def require_key(digests: frozenset[bytes]) -> None:
    """Raise the 401 that applies unless the request carries a valid key (RFC 6750).

    Looking up a digest takes a time that depends on the digest alone, and nobody can
    choose a key whose digest is close to that of a valid one: timing tells nothing.
    """
    header = request.environ.get("HTTP_AUTHORIZATION", "")
    scheme, _, key = header.partition(" ")
    key = key.strip(" ")
    if scheme.lower() != "bearer" or not key:
        raise ServiceError(
            "missing_api_key",
            "Send an API key in the header 'Authorization: Bearer <API_KEY>'.",
            [("WWW-Authenticate", CHALLENGE)],
        )
    # WSGI passes the bytes of a header as Latin-1 text (PEP 3333).
    if sha256(key.encode("latin-1", "backslashreplace")).digest() not in digests:
        raise ServiceError(
            "invalid_api_key",
            "The API key is not valid. Send one that this service was started with.",
            [("WWW-Authenticate", f'{CHALLENGE}, error="invalid_token"')],
        )
