"""An address as an option of the command line."""

import click

from svc._core.cidr import Address
from svc.model.mapped import ipv4_of


def parse_address(_context: click.Context, _option: click.Parameter, text: str | None) -> Address | None:
    """Return the address of an option. Raise BadParameter if it is not one, or is IPv4-mapped: no pool has such addresses."""
    if text is None:
        return None
    try:
        address = Address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if (mapped := ipv4_of(address)) is not None:
        raise click.BadParameter(f"{text!r} is IPv4-mapped: give {mapped}")
    return address
