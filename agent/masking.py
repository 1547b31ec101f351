"""Taking secrets out of text before it is logged, published or shown."""

from __future__ import annotations

import re

MASK = "***"

# `user:password@` and `token@` of an address; the last @ before the path ends it, so a password may hold one. What stands in the
# place of the port and is none is a password too, with characters in it that an address must not have.
_USER_INFO = re.compile(
    r"(?P<scheme>(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]*://)"
    r"(?:[^/\s\"'<>?#]*|[^/\s:@\[]{0,256}:(?!\d*(?:[/?#\s]|$))[^\s\"'<>]{0,256})@"
)
# `?password=…` and `password: …`, `"token": "…"`
_ASSIGNED = re.compile(
    r"(?P<name>(?:password|passwd|pwd|passphrase|secret|token|api_?key|auth|signature|sig)[\"']?\s*[=:]\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s&,;\"'}\])]+)",
    re.IGNORECASE,
)


def mask(text: str) -> str:
    """The text with the user part of addresses and the values of password-like names replaced by `***`."""
    return _ASSIGNED.sub(rf"\g<name>{MASK}", _USER_INFO.sub(rf"\g<scheme>{MASK}@", text))
