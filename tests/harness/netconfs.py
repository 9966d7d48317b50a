"""Valid and invalid network configurations."""

import copy
from typing import Any

import orjson
import pytest

from svc.model.errors import CallerError, Code
from svc.names import DEFAULT
from svc.netconf.fields import keys_of
from svc.netconf.netconf import NetConf, parse

GOOD: dict[str, Any] = {"name": "net", "type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
SHOWN = {True: "true", False: "false"}  # as errors show them


def put(data: dict[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Set the field at this path of keys."""
    section = data
    for key in keys[:-1]:
        section = section.setdefault(key, {})
    section[keys[-1]] = value
    return data


def with_field(path: str, value: Any) -> dict[str, Any]:
    """Return a valid configuration with another value of one field."""
    return put(copy.deepcopy(GOOD), keys_of(path), value)


def config(**changes: Any) -> dict[str, Any]:
    """Return a valid configuration with changes: `a__b=1` sets `b` in the section `a`."""
    data = copy.deepcopy(GOOD)
    for path, value in changes.items():
        put(data, tuple(path.split("__")), value)
    return data


def parsed(data: dict[str, Any], *, lenient: bool = False) -> NetConf:
    """Parse the configuration."""
    return parse(orjson.dumps(data), DEFAULT, lenient=lenient)


def refused(data: dict[str, Any], *, lenient: bool = False) -> CallerError:
    """Return the error that refuses the configuration."""
    with pytest.raises(CallerError) as caught:
        parse(orjson.dumps(data), DEFAULT, lenient=lenient)
    assert caught.value.code is Code.INVALID_NETCONF
    return caught.value
