"""svcctl uninstall."""

from pathlib import Path

import click

from svc.ctl.context import Context, names_option
from svc.ctl.installation import uninstall
from svc.ctl.records import other_installations, recorded_state_dir
from svc.netconf.installed import remove_installed
from svc.netconf.profiles import canonical


@click.command(name="uninstall")
@click.option(
    "--bin-dir", type=click.Path(path_type=Path), required=True, help="Where the container runtime looks for plugins."
)
@names_option
@click.pass_obj
def command(context: Context, bin_dir: Path) -> None:
    """Removes what `svcctl install` has put there, and puts back what was there before; what was changed since is kept."""
    context, folder = context.with_own_names, bin_dir.absolute()
    state_dir, profile = recorded_state_dir(folder, context.names) or context.state_dir, canonical(context.profile)
    for path, outcome in uninstall(folder, context.names, other_installations(state_dir, profile, folder)):
        click.echo(f"{path} {outcome}")
    remove_installed(state_dir, profile, str(folder))
