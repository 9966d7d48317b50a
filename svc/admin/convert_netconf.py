"""Conversion of network configurations, alone or in a network list, between names profiles."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from svc.admin.convert import Note, Unconvertible
from svc.admin.documents import Document
from svc.admin.renaming import Renaming
from svc.model.field_errors import display
from svc.names import Names
from svc.netconf import netconf as netconfs
from svc.netconf.fields import FIELDS, POLICY_TYPES, keys_of
from svc.netconf.networklist import type_of

Json = dict[str, Any]

_OF_CNI: Final = ("name", "cniVersion", "capabilities", "runtimeConfig", "disableCheck", "disableGC", "loadOnlyInlinedPlugins")
_OF_RUNTIME: Final = ("prevResult", "cni.dev/valid-attachments", "cni.dev/attachments")
_ALTERNATIVES: Final = ("orch", "kubernetes")  # names of the section with the access to the Kubernetes API
_API_ROOTS: Final = ("orch_api_root", "k8s_api_root")
_OWN: Final = ("readiness_gates_timeout_seconds", "readiness_gates_tls_verify", "readiness_gates_ca_file")
CALICO: Final = "calico"  # plugin name of the other program that reads such configurations


def is_netconf(document: Document) -> bool:
    """Return whether the document is a network configuration or a network list."""
    content = document.content
    return isinstance(content, dict) and "kind" not in content and ("plugins" in content or "type" in content)


def plugin_of(document: Document, known: Sequence[Names]) -> tuple[Json, Names]:
    """Return the configuration of the plugin, as runtimes pass it, and its names. Raise Unconvertible, CallerError."""
    content = document.content
    listed = content.get("plugins")
    plugins = listed if isinstance(listed, list) else [content]
    for names in known:
        for plugin in plugins:
            if type_of(plugin) == names.plugin:
                whole = {**{name: content[name] for name in ("name", "cniVersion") if name in content}, **plugin}
                netconfs.read(whole, names, source=f"network configuration {document.title.strip(': ')}")
                return plugin, names
    types = ", ".join(dict.fromkeys(names.plugin for names in known))
    found = [type_of(plugin) for plugin in plugins]
    raise Unconvertible(
        f"{document.title}type = {display(found[0] if len(found) == 1 else found)} is of no known names profile",
        details=f"known are {types}; name the profile of the file with --names",
    )


def others_of(document: Document, plugin: Json) -> list[Json]:
    """Return the other plugins of a network list."""
    listed = document.content.get("plugins")
    return [each for each in listed if each is not plugin] if isinstance(listed, list) else []


def convert(document: Document, plugin: Json, renaming: Renaming, note: Note) -> Json:
    """Return the network configuration or list with the names of the target."""
    found = _plugin(plugin, renaming, note)
    listed = document.content.get("plugins")
    if not isinstance(listed, list):
        return found
    return {**document.content, "plugins": [found if each is plugin else each for each in listed]}


def _plugin(plugin: Json, renaming: Renaming, note: Note) -> Json:
    source, target = renaming.source, renaming.target
    for path in _unknown(plugin):
        note(path, "svc does not read it")
    result: Json = {}
    for name, value in plugin.items():
        if name in _ALTERNATIVES:
            result[target.orch_section] = _access(value, target)
        elif name in _top_level():
            result[name] = value
    result["type"] = target.plugin
    if result["ipam"].get("type") == source.ipam_plugin:
        result["ipam"] = {**result["ipam"], "type": target.ipam_plugin}
    if isinstance(result.get("policy"), dict) and result["policy"].get("type") in POLICY_TYPES:
        result["policy"] = {**result["policy"], "type": target.orch_policy}
    if result.get("datastore_type") in (source.orch_datastore, *_ALTERNATIVES):
        result["datastore_type"] = target.orch_datastore
    if target.plugin == CALICO:
        _note_own(result, note)
    return {name: _paths(value, renaming) for name, value in _known_only(result).items()}


def _note_own(entry: Json, note: Note) -> None:
    """Record what svc reads with the names of Calico, and Calico's own plugin does not."""
    if entry.get("datastore_type") == "embedded":
        note("datastore_type", "it is kept, but only svc has an embedded datastore")
    for name in _OWN:
        if name in entry:
            note(name, "it is kept, but only svc reads it")


def _access(section: Any, target: Names) -> Any:
    if not isinstance(section, dict):
        return section
    return {target.orch_api_root if name in _API_ROOTS else name: value for name, value in section.items()}


def _paths(value: Any, renaming: Renaming) -> Any:
    if isinstance(value, dict):
        return {name: _paths(item, renaming) for name, item in value.items()}
    return renaming.path(value) if isinstance(value, str) and value.startswith("/") else value


def _top_level() -> set[str]:
    return {*_OF_CNI, *(keys_of(path)[0] for field in FIELDS for path in field.paths)} - set(_OF_RUNTIME)


def _known_paths() -> set[tuple[str, ...]]:
    found = {keys_of(path) for field in FIELDS for path in field.paths}
    return found | {("kubernetes", *path[1:]) for path in found if path[0] == "orch"}


def _unknown(plugin: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of fields that svc does not read. Sections are objects of known fields; `args` is open."""
    known = _known_paths()
    sections = {path[0] for path in known if len(path) > 1}
    for name, value in plugin.items():
        if name in _OF_CNI or name == "args":
            continue
        if (name,) not in known or name in _OF_RUNTIME:
            yield name
        elif name in sections and isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in value if (name, inner) not in known)


def _known_only(entry: Json) -> Json:
    """Return the configuration without the fields that `_unknown` yields."""
    unknown = set(_unknown(entry))
    result: Json = {}
    for name, value in entry.items():
        if name not in unknown:
            is_section = isinstance(value, dict)
            result[name] = {key: item for key, item in value.items() if f"{name}.{key}" not in unknown} if is_section else value
    return result
