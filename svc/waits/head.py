"""Parser for the head of an HTTP/1 response: the status, and the target of a redirect."""

import re
from typing import Final

from svc.values import dataclass

_LIMIT: Final = 16 << 10  # bytes of a head and of interim responses before it
_STATUS: Final = re.compile(rb"HTTP/1\.\d (\d{3})(?: [^\r\n]*)?\r?\n")
_LOCATION: Final = re.compile(rb"^location:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_REDIRECTS: Final = (301, 302, 303, 307, 308)  # RFC 9110, section 15.4: the other ones have no single target


class NotHttp(Exception):
    """The server does not speak HTTP/1."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status of a response. `location` is empty unless the response redirects."""

    status: int
    location: str = ""


def parse_head(data: bytes) -> Head | None:
    """Return the head of the final response, or None if more must be read. Raise NotHttp.

    Responses below 200 only precede the final one (RFC 9110, section 15.2). A redirect is read to the end of its head, any
    other response to the end of its first line.
    """
    rest, complete = data, True
    while complete and (match := _STATUS.match(rest)):
        status = int(match[1])
        head, complete, after = _split(rest)
        if status >= 200 and status not in _REDIRECTS:
            return Head(status)
        if status >= 200 and complete:
            found = _LOCATION.search(head)
            return Head(status, found[1].decode("latin-1") if found else "")
        if complete:
            rest = after
    if (complete and b"\n" in rest) or len(data) > _LIMIT:
        raise NotHttp
    return None


def _split(data: bytes) -> tuple[bytes, bool, bytes]:
    """Return the head, whether it is complete, and the data after it."""
    head, separator, after = data.partition(b"\r\n\r\n")
    return head, bool(separator), after
