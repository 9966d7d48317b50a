"""Global options of svcctl: directories, datastore and output format."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import yaml

from svc.ctl.target import Given, Target, choose_target, names_of
from svc.datastore.api import Backend
from svc.datastore.open import open_backend
from svc.model.errors import CallerError
from svc.model.resource import Resource
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import DEFAULT_NAME
from svc.values import dataclass

FORMATS = ("table", "json", "yaml")

_NONE: Mapping[str, str] = {}

Column = tuple[str, Callable[[Resource], str]]
"""A heading, and the text of a cell below it."""


@dataclass(frozen=True, slots=True)
class CliContext:
    """The global options. `profile` is the names profile's name or path, `netconf` the file that names the datastore."""

    state_dir: Path
    run_dir: Path
    output: str = FORMATS[0]
    profile: str = ""
    netconf: Path | None = None
    embedded: bool = False

    @property
    def names(self) -> Names:
        """Return the names that the user chose, else the installed ones. Raise CallerError."""
        return names_of(self._given, self.state_dir)

    @property
    def target(self) -> Target:
        """Return the datastore to work on. Raise CallerError."""
        return choose_target(self._given, self.state_dir)

    @property
    def with_own_names(self) -> "CliContext":
        """Return the context with the names of svc if the user chose none, also if others are installed."""
        return replace(self, profile=self.profile or DEFAULT_NAME)

    @property
    def _given(self) -> Given:
        return Given(self.profile, self.netconf, self.embedded)

    @contextmanager
    def store(self, target: Target | None = None) -> Iterator[Backend]:
        """Open the datastore for reading. Raise CallerError if it is an embedded one that does not exist, StoreError."""
        target = target or self.target
        if target.is_embedded and not target.file.exists():
            raise _missing_store(target)
        with closing(open_backend(target.settings, self.state_dir, target.names)) as store:
            yield store

    @contextmanager
    def changing(self, target: Target | None = None, *, create: bool = False) -> Iterator[Backend]:
        """Open the datastore for a change, and print its name at the end.

        With `create`, make an embedded store that does not exist. Raise as `store`."""
        target = target or self.target
        if create and target.is_embedded:
            self._require_state_dir(target)
            with closing(open_backend(target.settings, self.state_dir, target.names)) as store:
                yield store
        else:
            with self.store(target) as store:
                yield store
        click.echo(f"datastore: {target}")

    def _require_state_dir(self, target: Target) -> None:
        """Refuse a directory that does not exist, because it is mistyped: `svcctl install` and the agent make the others."""
        if not self.state_dir.is_dir() and self.state_dir != Path(DEFAULT.state_dir):
            raise _missing_store(target)

    def show(self, resources: Sequence[Resource], columns: Sequence[Column], faults: Mapping[str, str] = _NONE) -> None:
        """Print resources in a form that `apply -f` reads again.

        With `faults`, by name, the table has a further column, and a line for each resource whose document cannot be read. The
        other formats have the faults on stderr."""
        documents = [resource.to_json(self.names.api_version) for resource in resources]
        rows = [[*(cell(item) for _, cell in columns), faults.get(item.name, "")] for item in resources]
        hidden = faults.keys() - {item.name for item in resources}
        rows += [[name, *("" for _ in columns[1:]), faults[name]] for name in sorted(hidden)]
        self.answer(documents, table([*(heading for heading, _ in columns), "FAULT" if faults else ""], rows))
        if self.output != FORMATS[0]:
            for fault in faults.values():
                click.echo(f"warning: {fault}", err=True)

    def answer(self, documents: Sequence[dict[str, Any]], text: str) -> None:
        """Print the text, or the same as documents for programs."""
        if self.output == "json":
            click.echo(json.dumps(documents, indent=2, ensure_ascii=False))  # a network may have more than 2**64 addresses
        elif self.output == "yaml":
            click.echo(_yaml(documents), nl=False)
        else:
            click.echo(text)


def _missing_store(target: Target) -> CallerError:
    return CallerError(
        f"{target} does not exist",
        details="name the agent's directory with --state-dir, or the datastore with --netconf; `svcctl pool apply` makes a new "
        "store in a directory that exists",
    )


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take -o as well."""

    def replace_output(context: click.Context, _: click.Parameter, output: str | None) -> None:
        context.obj = replace(context.obj, output=output) if output else context.obj

    option = click.option("-o", "--output", type=click.Choice(FORMATS), expose_value=False, callback=replace_output)
    return option(command)


def names_option(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take --names as well."""

    def replace_profile(context: click.Context, _: click.Parameter, profile: str | None) -> None:
        context.obj = replace(context.obj, profile=profile) if profile else context.obj

    explanation = "Names profile.  [default: svc]"
    option = click.option("--names", metavar="NAME|FILE", expose_value=False, callback=replace_profile, help=explanation)
    return option(command)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """Return aligned columns, two spaces apart. Align the last `numbers` columns on the right."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    aligned = [str.ljust] * (len(widths) - numbers) + [str.rjust] * numbers
    cells = [[align(cell, width) for align, cell, width in zip(aligned, line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def _yaml(documents: Sequence[Any]) -> str:
    return str(yaml.safe_dump_all(documents, sort_keys=False, default_flow_style=False, explicit_start=len(documents) > 1))
