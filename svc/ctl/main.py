"""The command line svcctl. A group of commands is loaded when it is used: starting must stay quick."""

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from svc import __version__
from svc.model.errors import SvcError
from svc.names import DEFAULT

_GROUPS = ("clusterinfo", "crd", "install", "ipam", "node", "pool", "uninstall")  # a module each, with `command` in it


class _Commands(click.Group):
    """Finds its groups by name, and tells errors of ours in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted((*super().list_commands(ctx), *_GROUPS))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _GROUPS:
            command: click.Command = import_module(f"svc.ctl.{cmd_name}").command
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SvcError as error:
            raise click.ClickException(" ".join(str(error).split())) from error


@click.group(cls=_Commands)
@click.option(
    "--state-dir", type=click.Path(path_type=Path), default=DEFAULT.state_dir, show_default=True, help="Where the datastore is."
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    default=DEFAULT.run_dir,
    show_default=True,
    help="Where the agent's socket is.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True, help="Form of answers."
)
@click.option(
    "--names", "profile", metavar="NAME|FILE", default="", help="Names profile.  [default: the installed one, else svc]"
)
@click.option(
    "--netconf",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Network configuration, or list, that says which datastore.  [default: $SVC_NETCONF, else the installed network]",
)
@click.option("--embedded", is_flag=True, help="Use the embedded store of the state directory, whatever is installed.")
@click.pass_context
def main(ctx: click.Context, /, **options: Any) -> None:
    """Install svc, and configure what it works with."""
    from svc.ctl.context import Context  # not needed for --help and errors of use

    if options["embedded"] and options["netconf"]:
        raise click.UsageError("--embedded and --netconf exclude each other: give one of them")
    ctx.obj = Context(**options)


@main.command()
def version() -> None:
    """Prints the version."""
    click.echo(__version__)
