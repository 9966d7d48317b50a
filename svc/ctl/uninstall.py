"""svcctl uninstall."""

from pathlib import Path

import click

from svc.ctl.context import Context, names_option
from svc.ctl.installation import uninstall


@click.command(name="uninstall")
@click.option(
    "--bin-dir", type=click.Path(path_type=Path), required=True, help="Where the container runtime looks for plugins."
)
@names_option
@click.pass_obj
def command(context: Context, bin_dir: Path) -> None:
    """Removes what `svcctl install` has put there; what was changed since is kept."""
    for path, outcome in uninstall(bin_dir.absolute(), context.names):
        click.echo(f"{path} {outcome}")
