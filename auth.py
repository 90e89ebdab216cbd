"""The API keys (contract, Authentication)."""

from collections.abc import Iterable
from hmac import compare_digest

from flask import request

from errors import ServiceError

# WWW-Authenticate in every 401 says how to authenticate (RFC 6750, section 3).
CHALLENGE = 'Bearer realm="petstore"'


def parse_keys(setting: object) -> list[bytes]:
    """Return the keys in a comma-separated string.

    Raise ValueError if there is none, or if one contains anything but visible ASCII.
    """
    text = setting if isinstance(setting, str) else ""
    keys = [key.strip() for key in text.split(",") if key.strip()]
    if not keys:
        raise ValueError(
            "this process sees no key; set it (in a shell, with export) to a string of "
            'keys, for example "key-1,key-2"'
        )
    for number, key in enumerate(keys, 1):
        # From ! to ~: the visible characters of ASCII.
        if not all("!" <= character <= "~" for character in key):
            raise ValueError(f"key {number} must consist of visible ASCII characters")
    return [key.encode() for key in keys]


def require_key(valid_keys: Iterable[bytes]) -> None:
    """Raise ServiceError (401) unless the request carries one of the keys."""
    # Not request.authorization: it parses a key with "=" before its end as parameters.
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    sent = key.strip().encode()
    if scheme.lower() != "bearer" or not sent:
        message = "Send an API key in the header 'Authorization: Bearer <API_KEY>'."
        headers = {"WWW-Authenticate": CHALLENGE}
        raise ServiceError("missing_api_key", message, 401, headers)
    # compare_digest takes the same time for each wrong key of the same length. == would
    # return earlier if the first byte is wrong, and so tell an attacker which first
    # bytes are right. (In bytes: it refuses a str that is not ASCII, and a client may
    # send one.)
    if not any(compare_digest(sent, valid) for valid in valid_keys):
        message = "The API key is not valid. Send one of the keys of this service."
        headers = {"WWW-Authenticate": f'{CHALLENGE}, error="invalid_token"'}
        raise ServiceError("invalid_api_key", message, 401, headers)
