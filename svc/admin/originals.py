"""Files of other deployments at the paths of an installation: svc keeps them beside its own, and uninstalling puts them back.

The first one of a path is the original: `NAME.before-svc`. What another program writes there later, and a network list that was
edited, is kept as `NAME.replaced-DIGEST`. Runtimes read neither name.
"""

import json
import os
from pathlib import Path
from typing import Final

from svc.admin.install_records import ANY, UNKNOWN, digest_of
from svc.atomic_file import File, sync_directory
from svc.model.errors import CallerError
from svc.names import DEFAULT, Names
from svc.netconf.networklist import read_file, type_of

SUFFIX: Final = ".before-svc"
_EXECUTABLE: Final = b": CNI plugin, spec versions "  # the text that each version of the executable has
_UNIT: Final = b"# Written by `svcctl install --systemd`."


def keep(file: File, recorded: str | None) -> Path | None:
    """Keep what `file` will replace under another name, unless svc wrote it; return that name, or None. Raise OSError.

    `recorded` is the digest of what svc wrote there, None if it wrote nothing."""
    data = _read(file.path)
    if data is None or data == file.data or _EXECUTABLE in data or recorded in (ANY, digest_of(data)):
        return None
    kept = original_of(file.path)
    if recorded is not None or _is_own(data) or os.path.lexists(kept):
        kept = file.path.with_name(f"{file.path.name}.replaced-{digest_of(data)}")
    if not os.path.lexists(kept):
        os.link(file.path, kept, follow_symlinks=False)  # the file itself stays where a runtime finds it
        sync_directory(kept.parent)
    return kept


def put_back(path: Path) -> bool:
    """Put the original back if there is one and its place is free; return whether it was. Raise OSError."""
    original = original_of(path)
    if not os.path.lexists(original) or os.path.lexists(path):
        return False
    original.rename(path)
    sync_directory(path.parent)
    return True


def original_of(path: Path) -> Path:
    """Return where the original of a path is kept."""
    return path.with_name(path.name + SUFFIX)


def require_own_list(path: Path, recorded: str | None, names: Names) -> None:
    """Raise CallerError if another program wrote the network list at a path. The user must decide what to do with it."""
    data = read_file(path) if path.exists() and recorded != UNKNOWN else None
    if data is None or recorded == digest_of(data) or _is_own(data):
        return
    raise CallerError(
        f"network list {str(path)!r} is of another deployment, with {_datastore(data, names)}",
        details=f"to take it over, repeat this with --netconf and a file that has its settings, such as --netconf {path}; "
        f"the list is then kept as {original_of(path).name} until `svcctl uninstall`. Else move it away",
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _is_own(data: bytes) -> bool:
    """Return whether svc wrote this, possibly edited by a user since."""
    return data.startswith(_UNIT) or any(type_of(plugin) == DEFAULT.plugin for plugin in _plugins(data))


def _datastore(data: bytes, names: Names) -> str:
    kinds = [str(plugin.get("datastore_type") or "") for plugin in _plugins(data) if type_of(plugin) == names.plugin]
    return f"datastore {kinds[0]!r}" if any(kinds) else "no datastore that can be read from it"


def _plugins(data: bytes) -> list[dict[str, object]]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return []
    plugins = document.get("plugins") if isinstance(document, dict) else None
    return [plugin for plugin in plugins if isinstance(plugin, dict)] if isinstance(plugins, list) else []
