"""Names profiles: the names of a deployment, from a shipped file or the user's own file.

A file is TOML; missing fields keep the names of svc. All field errors of a file are in one exception.
"""

import sys
from pathlib import Path
from typing import Any, Final

import svc.names
from svc.atomic_file import FileVersion, file_version
from svc.model.errors import CallerError, Code
from svc.model.field_errors import Check, FieldErrors, Finding, json_kind, matching
from svc.model.shortage import shortage
from svc.names import DEFAULT, Names
from svc.values import fields

SHIPPED: Final = Path(svc.names.__file__).parent / "profiles"
DEFAULT_NAME: Final = "default"
_OWN: Final = ("", DEFAULT_NAME, DEFAULT.plugin)  # values that select the names of svc

# IFNAMSIZ is 16 including the final NUL, and 11 characters follow the prefix.
MAX_PREFIX: Final = 4
_LONGEST_DEVICE: Final = 15
_FIRST_PROTOCOL: Final = 5  # after RTPROT_STATIC
_LAST_PROTOCOL: Final = 255


def load_profile(name_or_path: str) -> Names:
    """Return a shipped profile, or that of the file at a path (with a slash). Raise CallerError that lists all field errors."""
    if name_or_path in _OWN:
        return DEFAULT
    return _read(_file_of(name_or_path))


def canonical(name_or_path: str) -> str:
    """Return the recorded form: a shipped profile's name, empty for the names of svc, or an absolute path."""
    if "/" in name_or_path:
        return str(Path(name_or_path).absolute())
    return "" if name_or_path in _OWN else name_or_path


class Profiles:
    """Loaded profiles, for any thread. A file is read again after a change."""

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[Path, FileVersion, Names]] = {}

    def get(self, name_or_path: str) -> Names:
        """Return the profile. Raise the errors of `load_profile`."""
        if name_or_path in _OWN:
            return DEFAULT
        loaded = self._loaded.get(name_or_path)
        path = loaded[0] if loaded else _file_of(name_or_path)
        version = file_version(path)
        if loaded is None or loaded[1] != version:
            loaded = self._loaded[name_or_path] = (path, version, _read(path))
        return loaded[2]


def _file_of(name_or_path: str) -> Path:
    if "/" in name_or_path:
        return Path(name_or_path)
    path = SHIPPED / f"{name_or_path}.toml"
    if path.name == f"{name_or_path}.toml" and path.is_file():
        return path
    known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
    raise CallerError(
        f"names profile {name_or_path!r} does not exist",
        details=f"shipped are {known} (or {DEFAULT.plugin} for {DEFAULT_NAME}); a file is given by its path, with a slash",
    )


def _read(path: Path) -> Names:
    if sys.version_info >= (3, 11):  # a process with the names of svc needs no TOML
        import tomllib
    else:
        import tomli as tomllib
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise shortage(error) or CallerError(
            f"names profile {str(path)!r} cannot be read: {error.strerror}",
            details="restore the file, or install with another --names",
            code=Code.IO_FAILURE,
        ) from None
    except (ValueError, RecursionError) as error:
        raise CallerError(
            f"names profile {str(path)!r} is not TOML: {error}", details="correct the file", code=Code.DECODING_FAILURE
        ) from None
    return _names(path, values)


def _names(path: Path, values: dict[str, Any]) -> Names:
    errors = FieldErrors(f"names profile {str(path)!r}", Code.INVALID_NETCONF)
    known = {field.name: getattr(DEFAULT, field.name) for field in fields(Names)}
    for name, value in values.items():
        if name not in known:
            errors.add(name, value, "is not known", f"leave it out; known are {', '.join(known)}")
        else:
            _check(name, value, known[name], errors)
    together = known | values
    if together["plugin"] == together["ipam_plugin"]:
        problem, remedy = "is the plugin's name too", "give each its own: they are two executables"
        errors.add("ipam_plugin", together["ipam_plugin"], problem, remedy)
    errors.raise_if_any()
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Names(**given)


def _check(name: str, value: Any, default: Any, errors: FieldErrors) -> None:
    if isinstance(default, tuple):
        _check_list(name, value, errors)
    elif type(value) is int and type(default) is int:
        errors.check(name, value, _route_protocol(value))
    elif type(value) is not type(default):
        kind = "a date or time" if hasattr(value, "isoformat") else json_kind(value)
        errors.add(name, value, f"is {kind}", f"give {json_kind(default)}")
    elif value == "":
        errors.add(name, value, "is empty", "give a name, or leave the field out for the name of svc")
    elif isinstance(value, str):
        errors.check(name, value, _CHECKS.get(name, _word)(value))


def _check_list(name: str, value: Any, errors: FieldErrors) -> None:
    if not isinstance(value, list) or not value:
        errors.add(name, value, "is not a list with entries", "give an array of strings")
        return
    for index, item in enumerate(value):
        finding = _LISTS[name](item if isinstance(item, str) else "")
        if finding:
            errors.add(f"{name}[{index}]", item, *finding)


def _route_protocol(number: int) -> Finding | None:
    if not _FIRST_PROTOCOL <= number <= _LAST_PROTOCOL:
        return "is not a protocol of routing programs", f"give {_FIRST_PROTOCOL} to {_LAST_PROTOCOL}; the kernel has the others"
    return None


_DOMAIN: Final = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_NAME: Final = r"(?a)[A-Za-z0-9][\w.-]*"
_word = matching(_NAME, "is not a name", "start with a letter or digit, then letters, digits, '_', '.' and '-'")
_prefix_word = matching(
    _NAME, "cannot begin an interface's name", "give letters, digits, '_', '.' and '-', a letter or digit first"
)


def _interface_prefix(text: str) -> Finding | None:
    size = len(text.encode())
    if size > MAX_PREFIX:
        return f"has {size} bytes", f"give at most {MAX_PREFIX}: 11 follow, and an interface's name has at most 15"
    return _prefix_word(text)


def _device(text: str) -> Finding | None:
    if len(text) > _LONGEST_DEVICE:
        return f"has {len(text)} characters", f"give at most {_LONGEST_DEVICE}, as the kernel allows"
    return _word(text)


_LISTS: Final[dict[str, Check]] = {
    "native_domains": matching(_DOMAIN + "/", "is not a domain with a slash", 'give one such as "example.org/"'),
    "foreign_devices": _device,
    "foreign_chains": _word,
}
_CHECKS: Final[dict[str, Check]] = {
    **dict.fromkeys(
        ("annotation_prefix", "orch_domain", "label_prefix", "qos_prefix"),
        matching(_DOMAIN, "is not a domain", "give lower-case letters, digits, '-' and '.', such as example.org"),
    ),
    **dict.fromkeys(
        ("api_version", "crd_api_version", "operator_api_version"),
        matching(
            _DOMAIN + r"/v[0-9][a-z0-9]*", "is not an API group with a version", "write GROUP/VERSION, such as example.org/v3"
        ),
    ),
    **dict.fromkeys(
        ("key_root", "state_dir", "run_dir", "log_dir"),
        matching(
            r"(/(?!\.\.?(/|$))[^/\0\n]+)+",
            "is not an absolute path",
            "start it with '/', without '.', '..' and a slash at the end",
        ),
    ),
    "interface_prefix": _interface_prefix,
    **dict.fromkeys(("vxlan_device", "vxlan6_device", "ipip_device"), _device),
    "conflist": matching(
        r"(?a)[\w-][\w.-]*\.conflist", "is not the file name of a network list", "give one without '/' that ends in .conflist"
    ),
}
