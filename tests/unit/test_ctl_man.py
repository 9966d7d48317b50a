"""svcctl man, and the examples in every help text."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from harness.svcctl import Cli
from svc.ctl.main import main
from svc.ctl.man_pages import pages


def commands(group: click.Group, path: str = "svcctl") -> Iterator[tuple[str, click.Command]]:
    """Yield each command that is not a group, with its words."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        child = group.get_command(context, name)
        assert child is not None
        if isinstance(child, click.Group):
            yield from commands(child, f"{path} {name}")
        else:
            yield f"{path} {name}", child


COMMANDS = dict(commands(main))


def examples(command: click.Command) -> list[str]:
    """Return the lines below the heading of the examples."""
    help_text = f"{command.help}\n{command.epilog or ''}"
    heading = next(heading for heading in ("Examples:\n", "Example:\n") if heading in help_text)
    return help_text.split(heading)[1].strip().splitlines()


@pytest.mark.parametrize("path", COMMANDS)
def test_every_help_has_examples(path: str) -> None:
    """Each example of the command itself has only options that exist."""
    command = COMMANDS[path]
    lines = examples(command)
    assert any(path in line for line in lines)
    options = {option for parameter in (*command.params, *main.params) for option in parameter.opts}
    for line in lines:
        own = line.split("#")[0].split("|")[0]
        words = own.split()
        used = {word.split("=")[0] for word in words if word.startswith("-") and word != "-"}
        assert path not in own or used <= options, line


def test_page_has_the_parts_that_readers_expect(tmp_path: Path) -> None:
    page = Cli(tmp_path).prints("man", "ipam", "show")
    headings = [line for line in page.splitlines() if line.startswith(".SH")]
    assert headings == [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS", ".SH EXAMPLES", ".SH SEE ALSO"]
    assert "svcctl\\-ipam\\-show \\- Show the use of the pools, or what an option names\n" in page
    assert "svcctl ipam show \\-\\-show\\-blocks\n" in page
    assert ".BR svcctl\\-ipam\\-configure (1)" in page


def test_options_have_texts(tmp_path: Path) -> None:
    """Arguments are only in the synopsis, because they have none."""
    lines = Cli(tmp_path).prints("man", "label").splitlines()
    options = lines[lines.index(".SH OPTIONS") : lines.index(".SH EXAMPLES")]
    entries = [options[index + 1 : index + 3] for index, line in enumerate(options) if line == ".TP"]
    names = [name.removeprefix(".B ").replace("\\-", "-") for name, _ in entries]
    assert names[:2] == ["-n, --namespace NAME", "-l, --selector SELECTOR"]
    assert all(text and not text.startswith(".") for _, text in entries)


def test_pages_of_all_commands_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "man1"
    printed = Cli(tmp_path).prints("man", "--dir", str(folder))
    names = {path.name for path in folder.iterdir()}
    assert {f"{path.replace(' ', '-')}.1" for path in COMMANDS} | {"svcctl.1", "svcctl-ipam.1"} <= names
    assert printed == f"{len(names)} pages written to {folder}\n"


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
def test_pages_are_valid_roff() -> None:
    """groff warns of nothing, and no line is lost: each option is in the text."""
    for name, text in pages(main, "svcctl"):
        done = subprocess.run(
            ["groff", "-man", "-ww", "-Tascii", "-P-cbou"], input=text, capture_output=True, text=True, check=True
        )
        assert done.stderr == "", name
        assert "SYNOPSIS" in done.stdout


def test_unknown_commands_and_unwritable_directories_are_errors(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    assert "svcctl ipam has no command 'shew'" in cli.fails("man", "ipam", "shew", code=2)
    assert "leave COMMAND out" in cli.fails("man", "ipam", "--dir", str(tmp_path), code=2)
    (tmp_path / "file").touch()
    assert "give a directory that you can write to" in cli.fails("man", "--dir", str(tmp_path / "file"))


def test_pages_replace_regular_files_only(tmp_path: Path) -> None:
    cli, folder = Cli(tmp_path / "cli"), tmp_path / "pages"
    folder.mkdir()
    os.mkfifo(folder / "svcctl.1", 0o600)
    assert f"page {str(folder / 'svcctl.1')!r} is a named pipe" in cli.fails("man", "--dir", str(folder))
    assert [path.name for path in folder.iterdir()] == ["svcctl.1"]
    assert "--dir '-' is not the name of a file" in cli.fails("man", "--dir", "-")
