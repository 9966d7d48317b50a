"""What every command of svcctl shares: where the files are, which datastore, and in what form to answer."""

import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import yaml

from svc.datastore.api import Backend
from svc.datastore.open import open_backend
from svc.model.errors import CallerError, Code
from svc.model.resource import Resource
from svc.names import Names
from svc.netconf import netconf as netconfs
from svc.netconf.netconf import NetConf
from svc.netconf.profiles import load_profile

FORMATS = ("table", "json", "yaml")

Column = tuple[str, Callable[[Resource], str]]
"""A heading, and what stands below it."""


@dataclass(frozen=True, slots=True)
class Context:
    """The global options. `profile` is the names profile's name or path, `netconf` the file that says which datastore."""

    state_dir: Path
    run_dir: Path
    output: str = FORMATS[0]
    profile: str = ""
    netconf: Path | None = None

    @property
    def names(self) -> Names:
        """CallerError."""
        return load_profile(self.profile)

    def settings(self) -> dict[str, str]:
        """Of the datastore: by option, else by the environment, else the embedded one. CallerError."""
        given = os.environ.get(f"{self.names.environment_prefix}NETCONF")
        path = self.netconf or (Path(given) if given else None)
        return read_netconf(path, self.names).datastore.to_json() if path else {"kind": "embedded"}

    @contextmanager
    def store(self) -> Iterator[Backend]:
        """CallerError, StoreError."""
        with closing(open_backend(self.settings(), self.state_dir, self.names)) as store:
            yield store

    def show(self, resources: Sequence[Resource], columns: Sequence[Column]) -> None:
        """Prints them; JSON as one array, YAML as one document each, which `apply -f` reads again."""
        documents = [resource.to_json(self.names.api_version) for resource in resources]
        rows = [[cell(item) for _, cell in columns] for item in resources]
        self.answer(documents, table([heading for heading, _ in columns], rows))

    def answer(self, documents: Sequence[dict[str, Any]], text: str) -> None:
        """Prints the text, or the documents that say the same to programs."""
        if self.output == "json":
            click.echo(json.dumps(documents, indent=2, ensure_ascii=False))  # a network may have more than 2**64 addresses
        elif self.output == "yaml":
            click.echo(_yaml(documents), nl=False)
        else:
            click.echo(text)


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take -o as well, where people expect it."""

    def replace_output(context: click.Context, _: click.Parameter, output: str | None) -> None:
        context.obj = replace(context.obj, output=output) if output else context.obj

    option = click.option("-o", "--output", type=click.Choice(FORMATS), expose_value=False, callback=replace_output)
    return option(command)


def names_option(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take --names as well."""

    def replace_profile(context: click.Context, _: click.Parameter, profile: str | None) -> None:
        context.obj = replace(context.obj, profile=profile) if profile else context.obj

    told = "Names profile.  [default: our own names]"
    return click.option("--names", metavar="NAME|FILE", expose_value=False, callback=replace_profile, help=told)(command)


def read_netconf(path: Path, names: Names) -> NetConf:
    """A network configuration, or our plugin's part of a list. CallerError."""
    return netconfs.read(read_plugin(path, names), names)


def read_plugin(path: Path, names: Names) -> dict[str, Any]:
    """The same, as it was written. CallerError."""
    raw = _read(path)
    return _ours(path, raw, names) if isinstance(raw.get("plugins"), list) else raw


def read_others(path: Path, known: Collection[str]) -> list[dict[str, Any]]:
    """The plugins of a list, in its order, that are none of the known ones; none where the file is no list. CallerError."""
    plugins = _read(path).get("plugins")
    others = [plugin for plugin in plugins if _type(plugin) not in known] if isinstance(plugins, list) else []
    for plugin in others:
        if not _type(plugin):
            raise CallerError(f"network list {str(path)!r} has a plugin without a type", details=f"remove {plugin!r}")
    return others


def _type(plugin: Any) -> str:
    return str(plugin.get("type") or "") if isinstance(plugin, dict) else ""


def read_file(path: Path) -> bytes:
    """What a user names. CallerError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CallerError(
            f"file {str(path)!r} cannot be read: {error.strerror}", details="name another one", code=Code.IO_FAILURE
        ) from None


def _read(path: Path) -> dict[str, Any]:
    return netconfs.decode(read_file(path))


def _ours(path: Path, conflist: dict[str, Any], names: Names) -> dict[str, Any]:
    """As a runtime hands it to the plugin."""
    for plugin in conflist["plugins"]:
        if isinstance(plugin, dict) and plugin.get("type") == names.plugin:
            return plugin | {name: conflist[name] for name in ("name", "cniVersion") if name in conflist}
    raise CallerError(
        f"network list {str(path)!r} has no plugin of type {names.plugin!r}", details="name another file, or other --names"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """Columns two spaces apart; the last ones, so many as `numbers`, are aligned on the right."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    aligned = [str.ljust] * (len(widths) - numbers) + [str.rjust] * numbers
    cells = [[align(cell, width) for align, cell, width in zip(aligned, line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def _yaml(documents: Sequence[Any]) -> str:
    return str(yaml.safe_dump_all(documents, sort_keys=False, default_flow_style=False, explicit_start=len(documents) > 1))
