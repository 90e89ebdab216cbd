"""A hook of schemathesis, which changes what it sends.

https://schemathesis.readthedocs.io/en/stable/guides/extending/
"""

import schemathesis


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: object) -> object:
    """Send 1 instead of 1.0: JSON Schema accepts both, but the service only 1."""
    if not isinstance(body, dict):
        return body
    number = body.get("categoryId")
    if isinstance(number, float) and number.is_integer():
        return {**body, "categoryId": int(number)}
    return body
