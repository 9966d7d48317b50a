"""Results of runs as files of JSON lines: the environment first, then the figures as they were measured."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from bench import ROOT
from bench.environment import words
from bench.idle_wait import BUSY
from bench.measurement import Figure

FOLDER = ROOT / "bench-results"

Json = dict[str, Any]

_REMEDY: Final = "give a file that `python -m bench` wrote, or a folder of them"


@dataclass
class Run:
    """A run that was read from a file. `lines` has everything but the environment."""

    path: Path
    environment: Json
    lines: list[Json] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Figure]:
        """Return the figures by name and parameters."""
        found = (Figure.of_json(line) for line in self.lines if "ours" in line)
        return {figure.key: figure for figure in found}

    def busy(self) -> dict[str, float]:
        """Return the share of the processors that other programs used beside each measurement."""
        return {line["case"]: max(line["busy"]) for line in self.lines if "busy" in line}

    def busy_keys(self) -> set[str]:
        """Return the figures that were measured on a busy machine."""
        busy = {name for name, share in self.busy().items() if share > BUSY}
        return {Figure.of_json(line).key for line in self.lines if "ours" in line and line.get("case") in busy}

    @property
    def ratios(self) -> dict[str, list[float]]:
        """Return the ratios of a run against another build by name, one for each repetition."""
        return {line["against"]: line["ratios"] for line in self.lines if "against" in line}


def new_file(environment: Json, folder: Path = FOLDER) -> Path:
    """Return the path of a new file. Its name says when the run began, and at which commit."""
    folder.mkdir(parents=True, exist_ok=True)
    began = environment["began"].partition("+")[0].translate(str.maketrans("", "", "-:"))
    return folder / f"{began}-{environment['commit'] or 'unknown'}.jsonl"


def create(file: Path | None, environment: Json) -> TextIO:
    """Open the file of a run, which without a name is a new one. Raise SystemExit, before anything is measured."""
    try:
        return (file or new_file(environment)).open("w")
    except OSError as error:
        raise SystemExit(f"the results cannot be written: {error}: name another file by --json") from None


def write_line(sinks: Iterable[Any], line: Json) -> None:
    for sink in sinks:
        print(json.dumps(line), file=sink, flush=True)


def read(path: Path) -> Run:
    """Read the results of one run. Raise ValueError if the file is not one."""
    lines = list[Json]()
    with path.open() as file:
        try:
            for text in file:
                lines.append(_checked(json.loads(text), is_first=not lines))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"line {len(lines) + 1}: {type(error).__name__}: {error}"
            raise ValueError(f"{path} does not have the results of a run: {what}: {_REMEDY}") from error
    if not lines:
        raise ValueError(f"{path} does not have the results of a run: it is empty: {_REMEDY}")
    return Run(path, lines[0]["environment"], lines[1:])


def _checked(line: Any, *, is_first: bool) -> Json:
    """Return a line. Raise ValueError, LookupError, TypeError, AttributeError if something in it is not as it was written."""
    if not isinstance(line, dict):
        raise TypeError("it is not an object")
    if is_first:
        words(line["environment"])
    elif "ours" in line:
        Figure.of_json(line)
    missing = {name for kind, name in (("busy", "case"), ("against", "ratios")) if kind in line and name not in line}
    if missing:
        raise LookupError(f"it has no {', '.join(missing)}")
    return line


def read_all(path: Path) -> list[Run]:
    """Read a file, or all files of a folder in the order of their names. Raise ValueError without any."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not all(map(Path.is_file, files)):
        raise ValueError(f"{path} has no results: {_REMEDY}")
    return [read(file) for file in files]
