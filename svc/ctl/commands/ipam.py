"""svcctl ipam."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from svc._core.cidr import Address
from svc.admin import owner_attributes
from svc.admin.resources import POOL
from svc.admin.usage import ORPHANS, Borrowed, Usage, read_borrowed, usage
from svc.ctl.address_option import parse_address
from svc.ctl.cli_context import CliContext, listed_errors, output_option, rehearse, table
from svc.ctl.commands.ipam_check import check_command
from svc.ctl.commands.ipam_layout import map_command, split_command
from svc.ctl.commands.ipam_release import release_command
from svc.ctl.terminal import echo, visible
from svc.datastore.api import Backend
from svc.ipam import settings
from svc.ipam.pools import read_pools
from svc.model.ipam import Attribute, IpamConfig
from svc.model.keys import PLURALS
from svc.values import replace

Json = dict[str, Any]
Answer = tuple[list[Json], str]
"""Documents, and the same as text."""

_PROPERTIES = {
    "strict_affinity": "strictAffinity",
    "auto_allocate_blocks": "autoAllocateBlocks",
    "max_blocks_per_host": "maxBlocksPerHost",
    "vm_address_persistence": "kubeVirtVMAddressPersistence",
    "cooldown_seconds": "ipCooldownSeconds",
}  # fields of the settings, and their names for users

_USAGE = ("GROUPING", "NAME", "CIDR", "NODE", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE")
_LARGEST_WHOLE = 2**64
_BORROWED = ("IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO")


@click.group()
def ipam() -> None:
    """Use of the pools, addresses and settings of all nodes.

    \b
    Examples:
      svcctl ipam show --show-blocks
      svcctl ipam check
      svcctl ipam map pods
    """


ipam.add_command(split_command)
ipam.add_command(map_command)
ipam.add_command(check_command, "check")
ipam.add_command(release_command, "release")


@ipam.command()
@click.option(
    "--ip",
    "address",
    metavar="ADDRESS",
    callback=parse_address,
    help="Show the attributes of this address; other options are ignored.",
)
@click.option("--show-blocks", "blocks", is_flag=True, help="Also show the blocks of each pool, and orphaned ones.")
@click.option("--show-borrowed", "borrowed", is_flag=True, help="Show addresses in blocks of other nodes.")
@click.option("--show-configuration", "configuration", is_flag=True, help="Show the settings.")
@output_option
@click.pass_obj
def show(context: CliContext, address: Address | None, blocks: bool, borrowed: bool, configuration: bool) -> None:
    """Show the use of the pools, or what an option names. An address in cooldown is in use, and fails --ip.

    \b
    Examples:
      svcctl ipam show --show-blocks
      svcctl ipam show --ip 10.65.0.7
      svcctl ipam show --show-borrowed -o json
      svcctl ipam show --show-configuration
    """
    if blocks + borrowed + configuration > 1:
        raise click.UsageError("--show-blocks, --show-borrowed and --show-configuration exclude each other: give one of them")
    with context.store() as store:
        if address is not None:
            answer = _format_holder(address, owner_attributes.find(store, address))
        elif borrowed:
            answer = _format_borrowed(*read_borrowed(store))
        elif configuration:
            answer = _format_settings(settings.read_settings(store))
        else:
            with listed_errors(PLURALS[POOL]):
                listed = [pool for pool in usage(store) if blocks or pool.name != ORPHANS]
                answer = _format_usage(listed, read_pools(store).unreadable, with_blocks=blocks)
    context.answer(*answer)


class _Boolean(click.types.BoolParamType):
    """A boolean whose error names the usual words only."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a boolean: write true or false", param, ctx)


@ipam.command()
@click.option(
    "--strictaffinity", "strict_affinity", type=_Boolean(), metavar="true|false", help="Nodes use their own blocks only."
)
@click.option("--auto-allocate-blocks", type=_Boolean(), metavar="true|false", help="Nodes claim blocks when they need them.")
@click.option(
    "--max-blocks-per-host",
    type=int,
    metavar="NUMBER",
    help="Blocks of a node. 0 means the default: 20, or no limit on an embedded store. At most 1000000.",
)
@click.option(
    "--kubevirt-ip-persistence",
    "vm_address_persistence",
    type=click.Choice([word for word in settings.PERSISTENCE if word]),
    help="Whether virtual machines keep their addresses.",
)
@click.option(
    "--ip-cooldown-seconds",
    "cooldown_seconds",
    type=int,
    metavar="NUMBER",
    help="Seconds for which released addresses are not assigned.",
)
@click.pass_obj
def configure(context: CliContext, /, **given: bool | int | str | None) -> None:
    """Change settings. Those without an option stay as they are.

    \b
    Examples:
      svcctl ipam configure --strictaffinity true
      svcctl ipam configure --max-blocks-per-host 4 --ip-cooldown-seconds 60
    """
    wanted: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    if not wanted:
        raise click.UsageError("nothing to change: give at least one option")

    def update(store: Backend) -> tuple[IpamConfig, IpamConfig]:
        return settings.update_settings(store, lambda present: replace(present, **wanted), _give_option)

    rehearse(context.target, update)
    with context.changing(create=True) as store:
        before, after = update(store)
        for field in wanted:
            kept = getattr(before, field) == getattr(after, field)
            echo(f"{_PROPERTIES[field]} {'is' if kept else 'set to'} {_text_of(getattr(after, field))}")


def _give_option(setting: str, value: str) -> str:
    """Return a fix: the option of `configure` for a setting, with the value."""
    options = {option.name or "": option.opts[0] for option in configure.params}
    return f"give {next(options[field] for field, name in _PROPERTIES.items() if name == setting)} {value}"


def _format_usage(pools: Sequence[Usage], unreadable: Mapping[str, str], *, with_blocks: bool) -> Answer:
    rows, documents = [], []
    for pool in pools:
        document: Json = {"name": pool.name, "cidr": str(pool.cidr)} | _counts(pool)
        rows += [_row("IP Pool", pool)] if pool.name != ORPHANS else []
        if with_blocks:
            rows += [_row("Block", block) for block in pool.blocks]
            document["blocks"] = [{"cidr": str(each.cidr), "affinity": each.affinity} | _counts(each) for each in pool.blocks]
        documents.append(document)
    documents += [{"name": name, "error": error} for name, error in unreadable.items()]
    return documents, "\n".join([table(_USAGE, rows, numbers=4), *(f"Not counted: {error}" for error in unreadable.values())])


def _format_borrowed(found: Sequence[Borrowed], unknown: int) -> Answer:
    """Show borrowed addresses; `unknown` allocations name no node."""
    fields = ("ip", "node", "block", "affinity", "type", "allocatedTo")
    values = [(str(one.address), one.node, str(one.block), one.owner, one.kind, one.holder) for one in found]
    note = f"\nNot told: {unknown} allocations that name no node" if unknown else ""
    documents = [dict(zip(fields, each, strict=True)) for each in values]
    return documents, table(_BORROWED, [[text or "" for text in each] for each in values]) + note


def _format_holder(address: Address, found: Attribute | None) -> Answer:
    if found is None:
        return [{"ip": str(address), "inUse": False}], f"{address} is not assigned"
    owners = {"Active": found.secondary or {}, "Alternate": found.alternate or {}}
    lines = [f"IP {address} is in use", f"Handle ID: {found.handle_id or '<none>'}"]
    lines += [line for which, owner in owners.items() if owner or which == "Active" for line in _owner_lines(which, owner)]
    document = {"ip": str(address), "inUse": True, "handle": found.handle_id}
    text = "\n".join(map(visible, lines))
    return [document | {"activeOwner": owners["Active"], "alternateOwner": owners["Alternate"]}], text


def _format_settings(settings: IpamConfig) -> Answer:
    applied = replace(settings, vm_address_persistence=settings.vm_address_persistence or "Enabled")
    values = {name: getattr(applied, field) for field, name in _PROPERTIES.items()}
    return [values], table(("PROPERTY", "VALUE"), [[name, _text_of(value)] for name, value in values.items()])


def _text_of(value: bool | int | str) -> str:
    """Return the value as in JSON, and on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(grouping: str, usage: Usage) -> list[str]:
    parts = (usage.in_use, usage.reserved, usage.available)
    counts = [f"{_count(part)} ({100 * part / usage.capacity:.0f}%)" for part in parts]
    node = (usage.affinity or "").removeprefix("host:")
    return [grouping, usage.name, str(usage.cidr), node, _count(usage.capacity), *counts]


def _count(number: int) -> str:
    """Shorten large numbers, so that the table fits on a screen."""
    return str(number) if number <= _LARGEST_WHOLE else f"{number:.5g}"


def _counts(usage: Usage) -> Json:
    return {"total": usage.capacity, "inUse": usage.in_use, "reserved": usage.reserved, "free": usage.available}


def _owner_lines(which: str, owner: Mapping[str, str]) -> list[str]:
    if not owner:
        return [f"{which} owner: none"]
    return [f"{which} owner:", *(f"  {name}: {value}" for name, value in sorted(owner.items()))]
