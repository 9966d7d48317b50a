"""Manifests that a user names: files, and URLs with a digest."""

import hashlib
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from svc.admin.documents import read_raw
from svc.deploy.server_apply import describe
from svc.model.errors import CallerError, Code, reason_of
from svc.netconf.networklist import MAX_FILE_BYTES, read_file

Json = dict[str, Any]

_URL: Final = re.compile("https?://")
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_SECONDS: Final = 30
_WITH_ENTRIES: Final = ("ConfigMap", "Secret", None)  # a template has no kind
_ENTRIES: Final = ("data", "stringData")


def read_manifest(place: str, sha256: str, option: str = "--sha256") -> tuple[list[Json], str]:
    """Return the documents of a file or URL, and the digest of the file. `option` gives the digest. Raise CallerError."""
    if sha256 and not _DIGEST.fullmatch(sha256):
        raise CallerError(f"{option} {sha256!r} is not a digest", details="give 64 lower-case hexadecimal digits")
    is_url = _URL.match(place) is not None
    if is_url and not sha256:
        raise CallerError(f"{place} is given without its digest", details=f"give it with {option}")
    data = _fetch(place) if is_url else read_file(Path(place))
    found = hashlib.sha256(data).hexdigest()
    if sha256 and found != sha256:
        raise CallerError(f"{place} has the digest {found}, not {sha256}", details="it is another file, or was changed")
    documents = [each.content for each in read_raw([(place, data)])]
    if not all(isinstance(each, dict) and isinstance(each.get("metadata") or {}, dict) for each in documents):
        raise CallerError(f"{place}: a document is not an object", details="give objects of Kubernetes")
    for each in documents:
        if not all(isinstance(each.get(name) or {}, dict) for name in _ENTRIES if each.get("kind") in _WITH_ENTRIES):
            raise CallerError(f"{place}: the entries of {describe(each)} are not an object", details="give names with texts")
    return documents, found


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as reply:  # noqa: S310  # the scheme is checked
            data: bytes = reply.read(MAX_FILE_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        cause = error.reason if type(error) is urllib.error.URLError else error  # not an answer, which says its status
        reason = reason_of(cause) if isinstance(cause, Exception) else cause
        details = "fetch the file yourself, and name it"
        raise CallerError(f"{url} cannot be read: {reason}", details=details, code=Code.IO_FAILURE) from error
    if len(data) > MAX_FILE_BYTES:
        raise CallerError(f"{url} has more than {MAX_FILE_BYTES} bytes", details="name a manifest")
    return data
