"""The bearer key: which keys are valid, and whether a request carries one."""

import os
from hashlib import sha256

from flask import request

from errors import ServiceError

CHALLENGE = 'Bearer realm="petstore"'


def key_digests(keys: str) -> frozenset[bytes]:
    """Return the SHA-256 digests of the keys in a comma-separated list.

    Blank ones are left out; ValueError if no key remains.
    """
    if not isinstance(keys, str):
        raise ValueError("API_KEYS must be a string of keys, separated by commas")
    names = [key.strip() for key in keys.split(",")]
    digests = frozenset(sha256(os.fsencode(name)).digest() for name in names if name)
    if not digests:
        raise ValueError(
            "PETSTORE_API_KEYS has no key; set it to one or more, separated by commas"
        )
    return digests


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
