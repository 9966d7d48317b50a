"""Network lists in files of the container runtime, and the network configuration of svc in them."""

from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, Final

from svc.model.errors import CallerError, Code
from svc.names import Names
from svc.netconf import netconf as netconfs
from svc.netconf.decoding import check_keys, decode, read_exact
from svc.netconf.netconf import NetConf

Json = dict[str, Any]

MAX_FILE_BYTES: Final = 64 * 2**20


def read_netconf(path: Path, names: Names) -> NetConf:
    """Read a network configuration, or that of svc in a network list. Raise CallerError if it is invalid."""
    data, file = read_file(path), str(path)
    source = f"network configuration {file!r}"
    return read_exact(
        decode(data, file), data, lambda document: netconfs.read(_plugin_of(document, path, names), names, source=source)
    )


def read_plugin(path: Path, names: Names) -> Json:
    """Return the network configuration of svc, not validated. Raise CallerError if the file has none."""
    return _plugin_of(_read(path), path, names)


def check_file(path: Path) -> None:
    """Raise CallerError if the file cannot be read, is not a JSON object, or repeats a key in an object."""
    data = read_file(path)
    decode(data, str(path))
    check_keys(data, str(path))


def _plugin_of(document: Json, path: Path, names: Names) -> Json:
    if not isinstance(document.get("plugins"), list):
        return document
    found = _part_of(document, names)
    if found is None:
        raise CallerError(
            f"network list {str(path)!r} has no plugin of type {names.plugin!r}", details="name another file, or other --names"
        )
    return found


def read_others(path: Path, known: Collection[str]) -> list[Json]:
    """Return the plugins of a network list whose type is not `known`, in order. Raise CallerError if a plugin has no type."""
    plugins = _read(path).get("plugins")
    others = [plugin for plugin in plugins if type_of(plugin) not in known] if isinstance(plugins, list) else []
    for plugin in others:
        if not type_of(plugin):
            raise CallerError(f"network list {str(path)!r} has a plugin without a type", details=f"remove {plugin!r}")
    return others


def find_lists(folder: Path, names: Names) -> list[Path]:
    """Return the files of a directory that configure svc, sorted by name. Unreadable files are skipped."""
    return [path for path in sorted(folder.glob("*.conf*")) if _is_ours(path, names)]


def read_file(path: Path) -> bytes:
    """Return the content of a file that a user names. Raise CallerError if it cannot be read, or is too long."""
    try:
        with path.open("rb") as file:
            return read_limited(file, f"file {str(path)!r}")
    except OSError as error:
        raise CallerError(
            f"file {str(path)!r} cannot be read: {error.strerror}", details="name another one", code=Code.IO_FAILURE
        ) from None


def read_limited(file: IO[bytes], name: str) -> bytes:
    """Return the content of an open file. Raise CallerError if it is too long, as that of a device may be, OSError."""
    content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise CallerError(f"{name} has more than {MAX_FILE_BYTES} bytes", details="give several files in its place")
    return content


def type_of(plugin: Any) -> str:
    """Return the type of a plugin in a list; empty if it has none."""
    return str(plugin.get("type") or "") if isinstance(plugin, dict) else ""


def _read(path: Path) -> Json:
    return decode(read_file(path), str(path))


def _is_ours(path: Path, names: Names) -> bool:
    try:
        document = _read(path)
    except CallerError:
        return False
    return type_of(document) == names.plugin or _part_of(document, names) is not None


def _part_of(document: Json, names: Names) -> Json | None:
    """Return the plugin's configuration in the form in which a runtime passes it."""
    plugins = document.get("plugins")
    for plugin in plugins if isinstance(plugins, list) else ():
        if type_of(plugin) == names.plugin:
            return {**plugin, **{name: document[name] for name in ("name", "cniVersion") if name in document}}
    return None
