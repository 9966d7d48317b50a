"""Every field of the network configuration with values of other types."""

from typing import Any

import pytest

from harness.netconfs import SHOWN, parsed, refused, with_field
from svc.model.errors import CallerError
from svc.netconf import fields
from svc.netconf.fields import FIELDS, Field
from svc.netconf.netconf import DatastoreSettings

LOCATION = {
    "etcdv3": ("etcd_endpoints", "etcd_discovery_srv", "etcd_authority", "etcd_scheme"),
    "orch": ("orch.kubeconfig", "orch.orch_api_root"),
}

VALUES: dict[str, list[Any]] = {
    "a number": [0, 1, -1, 2**63, 2**64 - 1],
    "a decimal number": [1.5, 1e300, 100.0],
    "a string": ["", "1", "true", "x"],
    "a boolean": [True, False],
    "an array": [[], [1], [[]]],
    "an object": [{}, {"a": 1}],
}
ACCEPTED = {
    fields.STRING: "a string",
    fields.INTEGER: "a number",
    fields.BOOLEAN: "a boolean",
    fields.OBJECT: "an object",
    fields.STRINGS: "an array",
    fields.ATTACHMENTS: "an array",
    fields.RANGES: "an array",
    fields.ROUTES: "an array",
}
FIXES = {
    fields.STRING: "in quotes",
    fields.INTEGER: "write a whole number without quotes",
    fields.BOOLEAN: "write true or false without quotes",
    fields.OBJECT: "write an object, {...}",
    fields.STRINGS: "write an array of strings, [...]",
    fields.ATTACHMENTS: 'write an array of objects with "containerID" and "ifname"',
    fields.RANGES: "write an array of arrays of objects, [[{...}]]",
    fields.ROUTES: "write an array of objects, [{...}]",
}
PATHS = [pytest.param(field, path, id=path) for field in FIELDS for path in field.paths]


def wrong_values(field: Field) -> list[tuple[str, Any]]:
    """Return each value of another type, with the name of its type."""
    return [(kind, value) for kind, values in VALUES.items() if kind != ACCEPTED[field.type] for value in values]


@pytest.mark.parametrize(("field", "path"), PATHS)
def test_error_names_a_wrong_type_and_its_fix(field: Field, path: str) -> None:
    for kind, value in wrong_values(field):
        error = refused(with_field(path, value))
        shown = "(hidden)" if field.secret else SHOWN[value] if isinstance(value, bool) else repr(value)
        assert error.msg == f"invalid network configuration: {path} = {shown} is {kind}"
        assert error.details.startswith(f"{path} = {shown}: ")
        assert FIXES[field.type] in error.details


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("key", ["assign_ipv4", "assign_ipv6"])
def test_booleans_of_ipam_must_be_in_quotes(key: str, value: bool) -> None:
    error = refused(with_field(f"ipam.{key}", value))
    assert f"ipam.{key} = {SHOWN[value]} is a boolean" in error.msg
    assert 'write one of "true", "false", in quotes' in error.details


@pytest.mark.parametrize("path", [field.path for field in FIELDS if field.type == fields.STRINGS])
@pytest.mark.parametrize("value", [1, None, True, 1.5, [], {}])
def test_error_has_the_index_of_a_wrong_element(path: str, value: Any) -> None:
    error = refused(with_field(path, ["x", value]))
    assert f"{path}[1] = " in error.details
    assert "write a string in quotes" in error.details


@pytest.mark.parametrize(("field", "path"), [path for path in PATHS if path.id not in {"name", "cniVersion"}])
def test_lenient_parsing_accepts_every_wrong_type(field: Field, path: str) -> None:
    for _, value in wrong_values(field):
        assert parsed(with_field(path, value), lenient=True).name == "net"


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, found in LOCATION.items() for field in found])
@pytest.mark.parametrize("value", [["http://127.0.0.1:2379"], 2379, True])
def test_lenient_parsing_keeps_the_errors_of_the_datastore_location(kind: str, field: str, value: Any) -> None:
    """The default would lead to another datastore. If the datastore is not used, its location has no errors."""
    data = with_field(field, value) | {"datastore_type": kind}
    found = parsed(data, lenient=True).location_errors
    assert [each.field for each in found.found] == [field]
    with pytest.raises(CallerError, match=f"invalid network configuration: {field} = "):
        found.raise_if_any()
    unused = parsed(data | {"datastore_type": "embedded"}, lenient=True)
    assert (unused.datastore, unused.location_errors.found) == (DatastoreSettings("embedded"), [])
