"""What every command of svcctl shares: where the files are, and in what form to answer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import orjson
import yaml

from svc.datastore.api import Backend
from svc.datastore.open import open_backend
from svc.model.resource import Resource
from svc.names import DEFAULT, Names

FORMATS = ("table", "json", "yaml")

Column = tuple[str, Callable[[Resource], str]]
"""A heading, and what stands below it."""


@dataclass(frozen=True, slots=True)
class Context:
    """The global options."""

    state_dir: Path
    run_dir: Path
    output: str = FORMATS[0]
    names: Names = DEFAULT

    @contextmanager
    def store(self) -> Iterator[Backend]:
        with closing(open_backend({"kind": "embedded"}, self.state_dir, self.names)) as store:
            yield store

    def show(self, resources: Sequence[Resource], columns: Sequence[Column]) -> None:
        """Prints them; JSON as one array, YAML as one document each, which `apply -f` reads again."""
        documents = [resource.to_json(self.names.api_version) for resource in resources]
        if self.output == "json":
            click.echo(orjson.dumps(documents, option=orjson.OPT_INDENT_2))
        elif self.output == "yaml":
            click.echo(_yaml(documents), nl=False)
        else:
            click.echo(table([heading for heading, _ in columns], [[cell(item) for _, cell in columns] for item in resources]))


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take -o as well, where people expect it."""

    def replace_output(context: click.Context, _: click.Parameter, output: str | None) -> None:
        context.obj = replace(context.obj, output=output) if output else context.obj

    option = click.option("-o", "--output", type=click.Choice(FORMATS), expose_value=False, callback=replace_output)
    return option(command)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def _yaml(documents: Sequence[Any]) -> str:
    return str(yaml.safe_dump_all(documents, sort_keys=False, default_flow_style=False, explicit_start=len(documents) > 1))
