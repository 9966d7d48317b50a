"""svcctl man."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from svc.admin.output_file import require_not_stdout, require_replaceable
from svc.atomic_file import File, write
from svc.ctl.man_pages import page_of, pages
from svc.ctl.path_option import PATH
from svc.model.errors import CallerError, reason_of


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.option("--dir", "folder", type=PATH, metavar="DIR", help="Write the pages of all commands to this directory.")
@click.pass_context
def man(context: click.Context, words: Sequence[str], folder: Path | None) -> None:
    """Show the manual page of svcctl, or of a command. If standard output is not a terminal, print it in roff.

    \b
    Examples:
      svcctl man
      svcctl man ipam show
      svcctl man --dir /usr/local/share/man/man1    # afterwards: man svcctl-ipam-show
    """
    if words and folder:
        raise click.UsageError("--dir writes the pages of all commands: leave COMMAND out")
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    if folder is not None:
        click.echo(f"{_write(folder, root.command)} pages written to {folder}")
        return
    _show(page_of(root.command, "svcctl", words))


def _show(page: str) -> None:
    program = shutil.which("man")
    if program and sys.stdout.isatty():
        subprocess.run([program, "-l", "-"], input=page.encode(), check=False)
    else:
        click.echo(page, nl=False)


def _write(folder: Path, root: click.Group) -> int:
    """Write all pages, each atomically; return their number. Raise CallerError, before the first if one is not a file."""
    require_not_stdout("--dir", folder)
    written = list(pages(root, "svcctl"))
    for name, _ in written:
        require_replaceable("page", folder / name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in written:
            write(File(folder / name, text.encode(), 0o644))
    except OSError as error:
        raise CallerError(
            f"{folder} cannot be written: {reason_of(error)}", details="give a directory that you can write to"
        ) from None
    return len(written)
