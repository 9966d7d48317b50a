"""Diagnostics of this node for a report: each part is a text without secrets, and one that fails hides no other."""

import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import svc
from svc.admin.agent_client import ask, find_holder
from svc.admin.redaction import redacted
from svc.admin.sources import Source, read_all
from svc.attach.journal_reader import describe, read_rows
from svc.model.errors import SvcError
from svc.netconf.installed import read_installed, read_networks
from svc.values import asdict

SECONDS: Final = 8.0  # for all parts, which are read in parallel
COMMAND_SECONDS: Final = 5.0
PART_BYTES: Final = 1 << 20  # more is cut, at its beginning if it is a log
TOTAL_BYTES: Final = 8 << 20
_KINDS: Final = ("state", "attachments", "calls", "metrics", "threads")
_COMMANDS: Final = {
    "links": ("ip", "-details", "-statistics", "link", "show"),
    "addresses": ("ip", "address", "show"),
    "routes4": ("ip", "-4", "route", "show", "table", "all"),
    "routes6": ("ip", "-6", "route", "show", "table", "all"),
    "rules4": ("ip", "-4", "rule", "show"),
    "rules6": ("ip", "-6", "rule", "show"),
    "neighbours": ("ip", "neighbour", "show"),
    "agent-log": ("journalctl", "--unit", "svc-agent", "--lines", "3000", "--no-pager", "--output", "short-iso-precise"),
    "unit": ("systemctl", "cat", "svc-agent", "--no-pager"),
    "processes": ("ps", "-eo", "pid,ppid,stat,etimes,rss,nlwp,comm"),
}

NUL: Final = "\0"  # between the words of a command line

Part = Callable[[], str]


class Diagnostics:
    """The parts of a report. `datastore` returns the summary of the datastore, `status` the status of the node."""

    def __init__(self, state_dir: Path, socket: Path, datastore: Part, status: Part) -> None:
        self._state_dir, self._socket = state_dir, socket
        parts: dict[str, Part] = {"versions": _versions, "status": status, "datastore": datastore}
        parts |= {"installations": self._installations, "journal": self._journal}
        parts |= {"agent-process": self._process, "agent-config": self._agent_config}
        parts |= {f"agent-{kind}": lambda kind=kind: self._asked(kind) for kind in _KINDS}  # type: ignore[misc]
        parts |= {name: lambda words=words: _run(words) for name, words in _COMMANDS.items()}  # type: ignore[misc]
        self._sources = [Source(name, part) for name, part in parts.items()]

    @property
    def is_complete(self) -> bool:
        """Whether no part is still being read."""
        return not any(source.is_running for source in self._sources)

    def read(self) -> dict[str, str]:
        """Return the parts by their names, in at most SECONDS and of at most TOTAL_BYTES, without secrets."""
        read_all(self._sources, SECONDS)
        found = {source.name: _text_of(source) for source in self._sources}
        found |= dict(self._files())
        return {name: redacted(text) for name, text in _within(TOTAL_BYTES, found)}

    def _asked(self, kind: str) -> str:
        return _json(ask(self._state_dir, self._socket, kind))

    def _journal(self) -> str:
        rows = read_rows(self._state_dir / "journal.db")
        return _json({"rows": [describe(record) for record in rows.records], "unreadable": rows.unreadable})

    def _installations(self) -> str:
        entries = [asdict(entry) for entry in read_installed(self._state_dir)]
        _, errors = read_networks(self._state_dir)
        return _json({"installations": entries, "errors": [str(error) for error in errors]})

    def _process(self) -> str:
        """Return what the kernel knows of the agent's threads, also if it is stopped or hangs."""
        pid = find_holder(self._state_dir).pid
        if not pid:
            return "no process holds the state directory\n"
        names = [f"/proc/{pid}/{name}" for name in ("cmdline", "status", "limits", "cgroup", "wchan")]
        for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
            names += [str(task / name) for name in ("comm", "wchan", "syscall", "stack")]
        return "".join(f"{name}: {_tail(Path(name)).replace(NUL, ' ').strip()}\n" for name in names)

    def _agent_config(self) -> str:
        """Return the configuration file that the command line of the agent names."""
        pid = find_holder(self._state_dir).pid
        words = _tail(Path(f"/proc/{pid}/cmdline")).split(NUL) if pid else []
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if word == "--config" or word.startswith("--config="):
                path = Path(word.partition("=")[2] or following)
                return f"{path}\n{_tail(path)}"
        return "the agent has no configuration file\n" if pid else "no process holds the state directory\n"

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield the configurations of the networks, and the ends of their logs."""
        with suppress(SvcError):
            for number, network in enumerate(read_networks(self._state_dir)[0]):
                yield f"network-{number}", f"{network.path}\n{_tail(network.path)}"
                if path := network.netconf.log_file_path:
                    yield f"network-{number}-log", f"{path}\n{_tail(Path(path))}"


def _text_of(source: Source) -> str:
    if source.failure is not None:
        return f"not available: {source.failure}\n"
    return _cut(str(source.value))


def _versions() -> str:
    system = os.uname()
    os_release = _tail(Path("/etc/os-release"))
    lines = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "svc": svc.__version__,
        "svc installed": svc.installed_version(),
        "python": f"{platform.python_version()} {sys.executable}",
        "sqlite": sqlite3.sqlite_version,
        "kernel": f"{system.sysname} {system.release} {system.version} {system.machine}",
        "node": system.nodename,
        "uptime": _tail(Path("/proc/uptime")).strip(),
    }
    return "".join(f"{name}: {text}\n" for name, text in lines.items()) + os_release


def _run(words: Sequence[str]) -> str:
    if shutil.which(words[0]) is None:
        return f"{words[0]} is not installed\n"
    done = subprocess.run(
        words, capture_output=True, timeout=COMMAND_SECONDS, check=False, stdin=subprocess.DEVNULL, errors="replace", text=True
    )
    return f"$ {' '.join(words)}\n{done.stdout}{done.stderr}"


def _tail(path: Path) -> str:
    """Return the end of a file from the begin of a line, or why it cannot be read."""
    try:
        with path.open("rb") as file:
            with suppress(OSError):  # files of /proc have no end
                file.seek(0, os.SEEK_END)
                start = max(0, file.tell() - PART_BYTES)
                file.seek(start)
                if start:
                    file.readline()  # a secret in it may be incomplete, and not recognised
            return file.read(PART_BYTES).decode(errors="replace")
    except OSError as failure:
        return f"not available: {failure.strerror}"


def _cut(text: str) -> str:
    if len(text) <= PART_BYTES:
        return text
    return f"{text[:PART_BYTES].rpartition(os.linesep)[0]}\n(cut: it has {len(text)} characters)\n"


def _within(limit: int, parts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield parts until their size exceeds the limit, and a note for each further one."""
    for name, text in parts.items():
        size = len(text.encode(errors="replace"))
        yield name, text if size <= limit else f"left out: the report would be larger than {TOTAL_BYTES} bytes\n"
        limit -= size if size <= limit else 0


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, default=str) + "\n"
