"""The verbs that every kind of resource has on the command line: get and delete."""

from collections.abc import Callable, Mapping, Sequence

import click

from svc.ctl import resources
from svc.ctl.context import Column, Context, output_option
from svc.datastore.api import Backend

Unreadable = Callable[[Backend], Mapping[str, str]]
"""The faults of resources that cannot be used, by name."""


def add_get(group: click.Group, kind: str, columns: Sequence[Column], unreadable: Unreadable = lambda _: {}) -> None:
    """Gives the group `get [NAME]`; what is `unreadable` is listed with its fault."""

    @group.command(help=f"Shows every {resources.NOUNS[kind]}, or one.")
    @click.argument("name", default="")
    @output_option
    @click.pass_obj
    def get(context: Context, name: str) -> None:
        with context.store() as store:
            faults = {each: fault for each, fault in unreadable(store).items() if name in ("", each)}
            context.show(resources.get(store, kind, name), columns, faults)


def add_delete(group: click.Group, delete_one: Callable[[Backend, str], None], explanation: str) -> None:
    """Gives the group `delete NAME`."""

    @group.command(help=explanation)
    @click.argument("name")
    @click.pass_obj
    def delete(context: Context, name: str) -> None:
        with context.changing() as store:
            delete_one(store, name)
            click.echo(f"{name} deleted")
