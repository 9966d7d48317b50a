"""svcctl install."""

import sys
from pathlib import Path

import click

from svc.ctl.context import Context
from svc.ctl.installation import Installation, find_executable, install

_PATH = click.Path(path_type=Path)


@click.command(name="install")
@click.option("--bin-dir", type=_PATH, required=True, help="Where the container runtime looks for plugins.")
@click.option("--socket", type=_PATH, help="Where the agent listens.  [default: agent.sock in the run directory]")
@click.option("--executable", type=_PATH, help="What to install.  [default: the one installed with this Python]")
@click.pass_obj
def command(context: Context, bin_dir: Path, socket: Path | None, executable: Path | None) -> None:
    """Installs the plugin's executables, whole or not at all; what is there already is left alone."""
    installation = Installation(
        socket=(socket or context.run_dir / "agent.sock").absolute(),
        python=Path(sys.executable),
        state_dir=context.state_dir.absolute(),
        run_dir=context.run_dir.absolute(),
    )
    for path, written in install(bin_dir, executable or find_executable(), context.names, installation):
        click.echo(f"{path} {'installed' if written else 'unchanged'}")
