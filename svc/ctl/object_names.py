"""Names of objects in a Kubernetes cluster, as options give them."""

import re
from collections.abc import Callable
from typing import Final

import click

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RULE: Final = "lower-case letters, digits{} and '-', a letter or digit first and last"
_KINDS: Final = {  # characters at most, form, remedy
    "namespace": (63, re.compile(_LABEL), _RULE.format("")),
    "service account": (253, re.compile(rf"{_LABEL}(\.{_LABEL})*"), _RULE.format(", '.'")),
}


def object_name(kind: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """Return the callback of an option that takes a "namespace" or a "service account".

    It refuses a name that the API server would refuse."""
    longest, form, rule = _KINDS[kind]

    def check(_context: click.Context, _option: click.Parameter, name: str) -> str:
        if len(name) > longest or not form.fullmatch(name):
            raise click.BadParameter(f"{name!r} is not the name of a {kind}: give up to {longest} {rule}")
        return name

    return check
