"""svcctl ipam split and map."""

import shutil
from datetime import datetime, timezone
from pathlib import Path

import click

from svc.admin.block_map import BlockMap, Cell, read_map, svg, text_lines
from svc.admin.output_file import require_replaceable
from svc.admin.pool_split import split
from svc.atomic_file import File, write
from svc.ctl.cli_context import CliContext, output_option
from svc.ctl.interrupts import one_interrupt
from svc.ctl.operator_pools import managed_pools
from svc.ctl.path_option import PATH
from svc.model.errors import CallerError, Code, reason_of

_MODE = 0o644  # of a picture


@click.command("split")
@click.argument("number", type=int)
@click.option("--pool", "name", required=True, metavar="NAME", help="The pool to split.")
@click.pass_obj
def split_command(context: CliContext, number: int, name: str) -> None:
    """Split a pool into NUMBER pools of equal size, with its settings and labels.

    \b
    NUMBER is a power of two. The new pools are split-NAME-0, split-NAME-1, and so on. Blocks and addresses stay as
    they are. The datastore must be locked, so that no node is at work. If it fails, nothing is changed; a split that
    was killed is completed by the same command.

    \b
    Example:
      svcctl clusterinfo lock
      svcctl ipam split 4 --pool pods
      svcctl clusterinfo unlock
    """
    with context.changing() as store:
        warnings = managed_pools(store, {name}, context.names)
        with one_interrupt():
            done = split(store, name, number, datetime.now(timezone.utc))
        for part in done.parts:
            click.echo(f"{part.name} created: {part.spec['cidr']}")
        click.echo(f"{done.name} deleted")
        click.echo(f"note: annotations and network configurations that name {done.name} must name the new pools", err=True)
        for warning in warnings:
            click.echo(f"warning: {warning}: list the new pools there", err=True)


@click.command("map")
@click.argument("pool")
@click.option("--node", default="", metavar="NAME", help="Show the blocks of this node as its own.")
@click.option("--svg", "picture", type=PATH, metavar="FILE", help="Also write the map as a picture.")
@output_option
@click.pass_obj
def map_command(context: CliContext, pool: str, node: str, picture: Path | None) -> None:
    """Show a cell for each block of a POOL: whose it is, and how full.

    \b
    The cells need no colour: o is a block of --node, f one of another host, u one without an affinity. A capital
    letter means that other nodes have borrowed addresses. The digit counts eighths in use.

    \b
    Examples:
      svcctl ipam map pods --node node-7
      svcctl ipam map pods --svg pods.svg
    """
    if picture is not None:
        require_replaceable("--svg", picture)
    with context.store() as store:
        found = read_map(store, pool, node)
    if picture is not None:
        _write(picture, svg(found))
    columns = shutil.get_terminal_size().columns
    context.answer([_document(found)], "\n".join(text_lines(found, columns)))


def _write(path: Path, text: str) -> None:
    try:
        write(File(path, text.encode(), _MODE))
    except OSError as error:
        raise CallerError(
            f"picture {str(path)!r} cannot be written: {reason_of(error)}", details="name another file", code=Code.IO_FAILURE
        ) from None


def _document(found: BlockMap) -> dict[str, object]:
    pool = found.pool
    return {
        "pool": pool.name,
        "cidr": str(pool.cidr),
        "blockSize": pool.block_size,
        "count": found.count,
        "blocks": [_cell(found.cells[number]) for number in sorted(found.cells)],
    }


def _cell(cell: Cell) -> dict[str, object]:
    counts = {"inUse": cell.used, "cooldown": cell.cooldown, "reserved": cell.reserved, "borrowed": cell.borrowed}
    return {"cidr": str(cell.cidr), "host": cell.host, "total": cell.cidr.size, "eighths": cell.eighths, **counts}
