"""svcctl ipam."""

from dataclasses import replace
from typing import Any

import click

from svc._core.cidr import Address
from svc.ctl import ipams
from svc.ctl.context import Context, output_option
from svc.ipam import owners, settings
from svc.ipam.borrowed import read_borrowed
from svc.ipam.usage import usage
from svc.ipam.view import read_pools


def _address(_context: click.Context, _option: click.Parameter, text: str | None) -> Address | None:
    try:
        return Address(text) if text is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group()
def command() -> None:
    """Use of the pools, containers of addresses, and the settings that all nodes share."""


@command.command()
@click.option(
    "--ip",
    "address",
    metavar="ADDRESS",
    callback=_address,
    help="The container that has this address; other options are ignored.",
)
@click.option("--show-blocks", "blocks", is_flag=True, help="With the blocks of each pool, and those that are in no pool.")
@click.option("--show-borrowed", "borrowed", is_flag=True, help="Addresses that nodes have in blocks of others.")
@click.option("--show-configuration", "configuration", is_flag=True, help="The settings.")
@output_option
@click.pass_obj
def show(context: Context, address: Address | None, blocks: bool, borrowed: bool, configuration: bool) -> None:
    """Shows how full the pools are, or what an option asks for. An address that cools down is in use, and fails --ip."""
    with context.store() as store:
        if address is not None:
            answer = ipams.tell_holder(address, owners.find(store, address))
        elif borrowed:
            answer = ipams.tell_borrowed(*read_borrowed(store))
        elif configuration:
            answer = ipams.tell_settings(settings.read_settings(store))
        else:
            answer = ipams.tell_usage(usage(store), read_pools(store).unreadable, with_blocks=blocks)
    context.answer(*answer)


@command.command()
@click.option("--strictaffinity", "strict_affinity", type=bool, metavar="true|false", help="Nodes use their own blocks only.")
@click.option("--auto-allocate-blocks", type=bool, metavar="true|false", help="Nodes claim blocks when they need them.")
@click.option(
    "--max-blocks-per-host", type=int, metavar="NUMBER", help="1000000 at most; 0: 20, and any number in an embedded store."
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
def configure(context: Context, /, **given: bool | int | str | None) -> None:
    """Changes settings; those that are not given stay as they are."""
    wanted: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    if not wanted:
        raise click.UsageError("nothing to change: give at least one option")
    with context.changing(create=True) as store:
        before, after = settings.amend(store, lambda present: replace(present, **wanted), _give_option)
        for field in wanted:
            kept = getattr(before, field) == getattr(after, field)
            click.echo(f"{ipams.PROPERTIES[field]} {'is' if kept else 'set to'} {ipams.text_of(getattr(after, field))}")


def _give_option(setting: str, value: str) -> str:
    """Word a remedy: the option of `configure` for a setting, with the value."""
    options = {option.name or "": option.opts[0] for option in configure.params}
    return f"give {next(options[field] for field, name in ipams.PROPERTIES.items() if name == setting)} {value}"
