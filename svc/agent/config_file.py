"""Agent options in a TOML file, for service managers. Each option is named as on the command line, with `_` for `-`."""

import sys
from pathlib import Path
from typing import Any

OPTIONS = ("socket", "state_dir", "run_dir", "metrics", "log_level")


def arguments_of(path: Path) -> list[str]:
    """Return the options as arguments of `svc-agent run`. Raise ValueError that names the file and the problem."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in _read(path).items()]


def _read(path: Path) -> dict[str, str]:
    if sys.version_info >= (3, 11):  # imported here, because most agents have no such file
        import tomllib
    else:
        import tomli as tomllib
    try:
        values = tomllib.loads(path.read_text())
    except OSError as failure:
        raise ValueError(f"{path} cannot be read: {failure.strerror}") from None
    except (ValueError, RecursionError) as failure:
        raise ValueError(f"{path} is not TOML: {failure}") from None
    if faults := [fault for name, value in values.items() if (fault := _fault(name, value))]:
        raise ValueError(f"{path}: {'; '.join(faults)}")
    return values


def _fault(name: str, value: Any) -> str:
    if name not in OPTIONS:
        return f"{name} is no option: use some of {', '.join(OPTIONS)}"
    return "" if isinstance(value, str) else f"{name} = {value!r} is no string: write it in quotes"
