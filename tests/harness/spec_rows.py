"""The statements of the specification and the tests that show them: the rows of docs/reference/spec.md.

A row is a decorator of its test, so that neither can be removed alone. `tests/reference.py` prints the rows.
"""

import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pytest

from svc.netconf.fields import FIELDS, Field

TESTS = Path(__file__).parents[1]
FOLDER = TESTS / "e2e"
_ROWS = "__statements__"

Test = TypeVar("Test", bound=Callable[..., None])

EVERYWHERE = ("embedded", "etcdv3", "orch")
_DATASTORES: Mapping[str, Sequence[str]] = {  # datastores of the tests that use these fixtures
    "make": EVERYWHERE, "make_with_ranges": EVERYWHERE, "pods": ("embedded",), "chain": ("embedded",),
    "shared_node": ("embedded",), "filed": ("embedded",), "dual": ("embedded",), "install": ("embedded",), "world": ("etcdv3",),
    "real": ("orch",), "web": ("orch",),
}  # fmt: skip

# Every statement of the specification that a deployment can rely on: section, subject, and names of the statements.
SPECIFICATION: Mapping[str, tuple[str, Sequence[str]]] = {
    "2.1": (
        "Fields of the network configuration",
        (
            "name", "cniVersion", "type", "nodename", "datastore_type", "log_level", "log_file_path", "log_file_max_size",
            "log_file_max_age", "log_file_max_count", "ipam", "container_settings", "readiness_gates", "orch", "policy",
            "policy_setup_timeout_seconds", "endpoint_status_dir", "feature_control", "feature_control.ip_addrs_no_ipam",
            "feature_control.floating_ips", "num_queues", "standard error",
        ),
    ),
    "2.2": (
        "Options of etcd",
        (
            "etcd_endpoints", "etcd_discovery_srv", "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file", "etcd_authority",
            "etcd_scheme",
        ),
    ),
    "2.3": (
        "The `ipam` section",
        ("ipam.type", "ipam.assign_ipv4", "ipam.assign_ipv6", "ipam.ipv4_pools", "ipam.ipv6_pools", "CNI_ARGS IP"),
    ),
    "2.4": ("The `container_settings` section", ("container_settings.allow_ip_forwarding",)),
    "2.5": ("The `orch` section", ("orch.kubeconfig", "orch.orch_api_root", "orch.node_name")),
    "2.6": ("The `policy` section", ("policy.type",)),
    "2.7": ("The `ipam` section of host-local", ("ipam.ranges", "ipam.subnet", "ipam.routes", "gateway")),
    "2.8": (
        "Annotations of pods and namespaces",
        (
            "ipv4pools", "ipv6pools", "ipAddrs", "ipAddrsNoIpam", "floatingIPs", "ingress-bandwidth", "egress-bandwidth",
            "namespaces",
        ),
    ),
    "2.9": (
        "Resources",
        (
            "IPPool metadata.name", "IPPool spec.cidr", "IPPool spec.ipipMode", "IPPool spec.natOutgoing",
            "IPPool spec.nodeSelector", "Installation svcNetwork", "Installation cni", "host endpoints",
        ),
    ),
    "2.10": ("Chained plugins", ("portmap", "bandwidth", "shipped", "removed", "others")),
    "3": ("Precedence of what chooses an address", ("rank 1", "rank 2", "rank 3")),
    "4": (
        "Rules",
        (
            "R1 default pools", "R1 node selectors", "R2 existing", "R2 exact", "R3 pod", "R3 namespace", "R3 netconf",
            "R4 together", "R4 families", "R4 priority", "R5 conflicts", "R5 floating", "R6 all ready", "R7 held",
            "R7 elapsed", "R7 writer", "R8 default routes", "R8 routes", "R8 only subnet", "R8 own IPAM", "R9", "R10", "R11",
            "R11 without controllers",
        ),
    ),
    "5": ("Authentication", ("5.1", "5.2", "5.3 pods", "5.3 nodes", "5.4")),
    "7": ("Errors", ("7.1", "7.2", "7.3", "7.4")),
    "8": (
        "Limits",
        ("log_file_max_size", "log_file_max_age", "log_file_max_count", "num_queues", "addresses", "portmap"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One statement in the words of svc, its implementation, and the choice that svc made if the statement leaves one.

    `text` is empty for a field, because the table of fields describes it. `test` is the test's node id below `tests`, and
    `datastores` are those on which it runs.
    """

    section: str
    name: str
    text: str
    how: str
    choice: str
    test: str
    datastores: Sequence[str] = ()


def statement(section: str, name: str, text: str, how: str, choice: str = "") -> Callable[[Test], Test]:
    """Declare that the decorated test shows this statement."""
    return _row(lambda test: Row(section, name, text, how, choice, test))


def field(path: str, how: str, choice: str = "") -> Callable[[Test], Test]:
    """Declare that the decorated test shows the described effect of this field of the network configuration."""
    section = next((number for number, (_, names) in SPECIFICATION.items() if path in names), field_of(path).section)
    return _row(lambda test: Row(section, path, "", how, choice, test))


def field_of(path: str) -> Field:
    return next(field for field in FIELDS if field.path == path)


def _row(make: Callable[[str], Row]) -> Callable[[Test], Test]:
    def decorate(test: Test) -> Test:
        file = Path(test.__code__.co_filename)
        row = make(f"{file.relative_to(TESTS)}::{test.__name__}")
        setattr(test, _ROWS, [row, *getattr(test, _ROWS, ())])
        return test

    return decorate


def rows() -> list[Row]:
    """Return all rows in the order of the specification. Additions of svc come last."""
    files = [file for file in sorted(FOLDER.rglob("test_*.py")) if "harness.spec_rows" in file.read_text()]
    return sorted((row for file in files for row in _rows_of(_load(file))), key=_place)


def _place(row: Row) -> tuple[int, int]:
    sections = list(SPECIFICATION)
    if row.section not in sections:
        return len(sections), 0
    names = SPECIFICATION[row.section][1]
    return sections.index(row.section), names.index(row.name) if row.name in names else len(names)


def _rows_of(module: ModuleType) -> Iterator[Row]:
    for value in vars(module).values():
        for row in getattr(value, _ROWS, ()):
            yield replace(row, datastores=_datastores(value))


def _datastores(test: Callable[..., None]) -> Sequence[str]:
    """Return the datastores of the test, from its mark for one of them, or from its fixtures."""
    marks: Sequence[pytest.Mark] = getattr(test, "pytestmark", ())
    chosen = [mark.args[1] for mark in marks if mark.name == "parametrize" and mark.args[0] == "site"]
    used = [_DATASTORES[name] for name in inspect.signature(test).parameters if name in _DATASTORES]
    return next(iter((*chosen, *used)))


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"statements_of_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
