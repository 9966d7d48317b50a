"""svcctl uninstall."""

from pathlib import Path

import click

from svc.admin import installer
from svc.admin.install_records import other_installations, recorded_state_dir
from svc.ctl.cli_context import CliContext, names_option
from svc.netconf.installed import remove_installed
from svc.netconf.names_profiles import canonical


@click.command(name="uninstall")
@click.option(
    "--bin-dir",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory in which the container runtime looks for plugins.",
)
@names_option
@click.pass_obj
def uninstall(context: CliContext, bin_dir: Path) -> None:
    """Remove the files of `svcctl install`, and put back earlier ones. Modified files are kept."""
    context, folder = context.with_own_names, bin_dir.absolute()
    state_dir, profile = recorded_state_dir(folder, context.names) or context.state_dir, canonical(context.profile)
    for path, outcome in installer.uninstall(folder, context.names, other_installations(state_dir, profile, folder)):
        click.echo(f"{path} {outcome}")
    remove_installed(state_dir, profile, str(folder))
