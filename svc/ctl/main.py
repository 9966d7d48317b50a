"""The command line svcctl. A group of commands is loaded when it is used, so that each starts fast."""

import atexit
import gc
import sys
from importlib import import_module
from typing import Any, Final

import click

import svc
from svc.ctl.file_completion import complete_profiles
from svc.ctl.interrupts import INTERRUPTED, import_interrupts
from svc.ctl.output import OutputError, checked_output, discard, discard_unread
from svc.ctl.path_option import PATH
from svc.ctl.terminal import visible_lines
from svc.model.errors import SvcError, reason_of
from svc.names import DEFAULT
from svc.values import replace

atexit.register(gc.freeze)  # otherwise the end of the process traverses all objects: 40 of 200 ms

_MODULES: Final = {  # of each group, which has the name of the group there
    **{name: name for name in ("attachments", "convert", "crd", "datastore", "diag", "explain", "install", "installation")},
    **{name: name for name in ("ipam", "man", "manifests", "reconcile", "status", "store", "upgrade", "version")},
    **dict.fromkeys(("clusterinfo", "node", "pool", "reservation"), "resources"),
    **dict.fromkeys(("delete", "get", "label"), "objects"),
    **dict.fromkeys(("apply", "create", "replace"), "apply"),
    "pending": "store",
    "test": "connection",
    "uninstall": "install",
}
_REPEATED: Final = (  # options of svcctl, also after the command
    *("state_dir", "run_dir", "profile", "netconf", "embedded", "allow_version_mismatch"),
)


class _Commands(click.Group):
    """Commands that are found by name, and whose errors are printed without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted((*super().list_commands(ctx), *_MODULES))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _MODULES:
            return _completed(getattr(import_module(f"svc.ctl.commands.{_MODULES[cmd_name]}"), cmd_name))
        command = super().get_command(ctx, cmd_name)
        return command and _completed(command)

    def main(self, *args: Any, **options: Any) -> Any:
        """Also print in one line why the output, a help text or an error cannot be written."""
        try:
            with checked_output():
                return super().main(*args, **options)
        except (OutputError, OSError) as error:
            try:
                click.echo(f"Error: {reason_of(error)}", err=True)
            except OSError:
                discard(sys.stderr)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with import_interrupts():
                return super().invoke(ctx)
        except SvcError as error:
            raise click.ClickException(visible_lines(error.as_text())) from error
        except KeyboardInterrupt:
            discard_unread(sys.stdout)
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except click.Abort as error:  # the end of the input, or Ctrl-C, in place of an answer to a question
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            click.echo("\ninterrupted", err=True)
            ctx.exit(INTERRUPTED)
        except RecursionError as error:
            raise click.ClickException(
                "a file that was given is nested too deeply: give fewer levels of objects and arrays"
            ) from error


def _completed(command: click.Command) -> click.Command:
    """Give a command and all below it the option --version and the options of svcctl, except those of the same name."""
    own = {name for option in command.params for name in option.opts}
    if "--version" not in own:
        _version_option(command)
        command.params += [
            _repeated(option) for option in main.params if option.name in _REPEATED and own.isdisjoint(option.opts)
        ]
    for child in command.commands.values() if isinstance(command, click.Group) else ():
        _completed(child)
    return command


def _repeated(option: click.Parameter) -> click.Option:
    """Return a hidden option of a command that overrides one of svcctl."""
    names, is_flag = [*option.opts, str(option.name)], isinstance(option, click.Option) and option.is_flag
    return click.Option(names, type=option.type, is_flag=is_flag, hidden=True, expose_value=False, callback=_override)


def _override(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value:
        context.obj = replace(context.obj, **{str(option.name): value})


def _print_version(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"svcctl {svc.__version__}")
        context.exit()


_version_option = click.option(  # reads the version only if it is asked for, which takes 40 ms
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version and exit."
)


@_version_option
@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--state-dir", type=PATH, default=DEFAULT.state_dir, show_default=True, help="The agent's state directory.")
@click.option("--run-dir", type=PATH, default=DEFAULT.run_dir, show_default=True, help="Directory of the agent's socket.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True, help="Output format."
)
@click.option(
    "--names",
    "profile",
    metavar="NAME|FILE",
    default="",
    shell_complete=complete_profiles,
    help="Names profile.  [default: the installed one, else svc]",
)
@click.option(
    "--netconf",
    metavar="FILE",
    type=PATH,
    help="Network configuration, or list, that names the datastore.  [default: $SVC_NETCONF, else the installed network]",
)
@click.option("--embedded", is_flag=True, help="Use the embedded store of the state directory, not the installed network's.")
@click.option("--allow-version-mismatch", is_flag=True, help="Use the datastore of a cluster of another version, too.")
@click.pass_context
def main(ctx: click.Context, /, **options: Any) -> None:
    """Install, configure and operate svc.

    \b
    Examples:
      svcctl install --bin-dir /opt/cni/bin --conf-dir /etc/cni/net.d --systemd
      svcctl get pools
      svcctl explain web/web-0                    # which addresses an ADD of this pod would get, and why
      svcctl ipam show --show-blocks
    """
    from svc.ctl.cli_context import CliContext  # not needed for --help and errors of use

    ctx.obj = CliContext(**options)
