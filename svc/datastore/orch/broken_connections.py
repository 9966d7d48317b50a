"""Why a connection to the API server broke off, for users."""

import re
from typing import Final

from urllib3 import exceptions as failures

_NUMBER: Final = re.compile(r"^\[Errno -?\d+\] ")  # of the system

_BREAKS: Final = (  # exception of urllib3, and its description
    (failures.ConnectTimeoutError, "no connection in time"),
    (failures.ReadTimeoutError, "no answer in time"),
    (failures.ProtocolError, "the connection broke off"),
)


def reason_of_break(error: Exception) -> str:
    """Return the reason of an error of urllib3 or of a socket."""
    if isinstance(error, failures.NewConnectionError):  # a subclass of ConnectTimeoutError that is not a timeout
        return _NUMBER.sub("", str(error).rpartition(": ")[2])
    return next((text for kind, text in _BREAKS if isinstance(error, kind)), str(error))
