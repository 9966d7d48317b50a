"""The reply to a request in an unsupported layout."""

import orjson

import svc
from svc.cni.frame import OtherVersion, pack_reply
from svc.cni.results import render_error
from svc.model.cni_versions import LATEST
from svc.model.errors import Code, PeerError


def refusal(other: OtherVersion) -> bytes:
    """Return a reply in this version's layout that names both versions and the fix."""
    error = PeerError(
        f"the executable is of version {other.version or 'unknown'}, the agent of {svc.__version__}:"
        " they have no protocol in common",
        details="install the newer version of both, and restart the agent",
        code=Code.IO_FAILURE,
    )
    return pack_reply(1, orjson.dumps(render_error(error, LATEST)), b"")
