"""Replies of the agent, as bytes."""

from svc.cni.call_io import Reply
from svc.cni.frame import FrameError, ReplyReader


def parse_reply(data: bytes) -> Reply:
    """Return a complete reply. Raise FrameError if it is truncated."""
    if (reply := ReplyReader().feed(data)) is None:
        raise FrameError(f"reply ends early, after {len(data)} bytes")
    return reply
