"""svcctl diag."""

import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import click

from svc.admin.diagnostics import Diagnostics
from svc.admin.node_status import NodeStatus
from svc.admin.output_file import require_not_stdout
from svc.cni.install_record import SOCKET_NAME
from svc.ctl.cli_context import CliContext
from svc.ctl.datastore_summary import named, summary
from svc.ctl.path_option import PATH
from svc.model.errors import CallerError, Code, PeerError

STATUS_SECONDS = 3.0


@click.command()
@click.option("--bundle", "file", type=PATH, metavar="FILE", help="Write the parts into a new archive (.tar.gz).")
@click.pass_obj
def diag(context: CliContext, file: Path | None) -> None:
    """Collect what is needed to find the cause of a problem on this node. Secrets are removed.

    \b
    Parts: versions, status, configuration, journal, ends of logs, the agent's state, calls and thread
    stacks, links, addresses, routes and rules of the host, and a summary of the datastore.
    It ends within 15 s, also if neither agent nor datastore answers.

    \b
    Examples:
      svcctl diag --bundle /tmp/node1.tar.gz
      svcctl diag | less
    """
    if file is not None:
        require_not_stdout("--bundle", file)
    if file is not None and os.path.lexists(file):
        raise CallerError(f"file {str(file)!r} exists", details="name a new one, or remove it", code=Code.IO_FAILURE)
    socket = context.run_dir / SOCKET_NAME
    status = NodeStatus(context.state_dir, socket, lambda: summary(context), lambda: named(context))
    parts = Diagnostics(context.state_dir, socket, lambda: _json(summary(context)), lambda: _json(status.read(STATUS_SECONDS)))
    found = parts.read()
    if file is None:
        for name, text in found.items():
            click.echo(f"==== {name} ====\n{text.rstrip()}\n")
    else:
        _write(file, found)
        click.echo(f"{file} written: {len(found)} parts, {file.stat().st_size} bytes")
    if not (parts.is_complete and status.is_complete):  # do not wait for threads whose server does not answer
        sys.stdout.flush()
        os._exit(0)


def _write(file: Path, parts: Mapping[str, str]) -> None:
    """Write an archive that only this user can read. Raise PeerError if that fails; nothing is left then."""
    folder = file.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz") or "diag"
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as target:
            try:
                with tarfile.open(fileobj=target, mode="w:gz") as archive:
                    for name, text in parts.items():
                        _add(archive, f"{folder}/{name}.txt", text)
            except BaseException:
                file.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise PeerError(
            f"file {str(file)!r} cannot be written: {error.strerror}", details="name another one", code=Code.IO_FAILURE
        ) from error


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode(errors="replace")
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    archive.addfile(member, io.BytesIO(data))


def _json(document: object) -> str:
    return json.dumps(document, indent=1, default=str) + "\n"
