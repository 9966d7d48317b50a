"""svcctl as tests call it."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner, Result

from harness.datastores import Site
from harness.node import netconf
from svc.ctl.main import main
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE


class Cli:
    """Runs svcctl in this process, with its own state directory. `options` precede every command."""

    def __init__(self, folder: Path, *options: str, fresh: bool = True, bare: bool = False) -> None:
        """Use the state directory. With `fresh`, create an embedded store that is ready. With `bare`, give no directories."""
        self.folder = folder
        directories = ("--state-dir", str(folder / "state"), "--run-dir", str(folder / "run"))
        self._options = options if bare else (*directories, *options)
        if fresh:
            EmbeddedStore(folder / "state" / EMBEDDED_FILE).close()

    def __call__(self, *arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, [*self._options, *arguments], input=stdin)

    def prints(self, *arguments: str, stdin: str | None = None) -> str:
        result = self(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def changes(self, *arguments: str, stdin: str | None = None) -> str:
        """Return the output before the line that names the datastore."""
        output, found, datastore = self.prints(*arguments, stdin=stdin).rpartition("datastore: ")
        assert found, output + datastore
        return output

    def fails(self, *arguments: str, stdin: str | None = None, code: int = 1) -> str:
        result = self(*arguments, stdin=stdin)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        return result.stderr


def commands(command: click.Command = main, *path: str) -> Iterator[str]:
    """Yield each command of svcctl with the names of its groups, separated by blanks."""
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from commands(child, *path, name)


def cli_on(site: Site, home: Path) -> Cli:
    """Return svcctl on the datastore of the network `net`."""
    home.mkdir(exist_ok=True)
    file = home / "netconf.json"
    file.write_text(json.dumps(netconf(**site.administration)))
    return Cli(home, "--netconf", str(file))
