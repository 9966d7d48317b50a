"""The file with the MTU of pods, which the node agent writes if there is one. Otherwise svc-routes does."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc.atomic_file import File, write

_NAME: Final = "mtu"
_MARK: Final = "mtu.routes"  # in the same directory: what svc-routes has written, or is about to write, a line for each

log = logging.getLogger("svc.routes")


def write_mtu(directory: Path, mtu: int) -> str:
    """Write the file unless another program has written it. Return the problem, if there is one."""
    path, mark = directory / _NAME, directory / _MARK
    content = f"{mtu}\n".encode()
    try:
        present = _content(path)
        if not mtu or present == content or not _is_own(present, mark):
            return ""
        write(File(mark, (present or b"") + content, 0o644))  # so that a kill before the next line leaves a file that is own
        write(File(path, content, 0o644))
        write(File(mark, content, 0o644))
    except OSError as failure:
        return f"{path} cannot be written: {failure.strerror}"
    log.info("pods get MTU %d", mtu)
    return ""


def remove_mtu(directory: Path) -> None:
    """Remove the file if svc-routes has written it. Raise OSError."""
    path, mark = directory / _NAME, directory / _MARK
    with suppress(FileNotFoundError):
        if _is_own(_content(path), mark):
            path.unlink(missing_ok=True)
        mark.unlink()


def _is_own(present: bytes | None, mark: Path) -> bool:
    return present is None or present in (_content(mark) or b"").splitlines(keepends=True)


def _content(path: Path) -> bytes | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.read_bytes()
    return None
