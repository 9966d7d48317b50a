"""Documents of each kind that svcctl writes, and a datastore's objects as svcctl shows them."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from harness.svcctl import Cli
from svc.names import DEFAULT

Json = dict[str, Any]

KINDS = "pools,reservations,settings,hep"


def document(kind: str, name: str, spec: Json, **metadata: Any) -> Json:
    return {"apiVersion": DEFAULT.api_version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def pool(name: str = "pods", cidr: str = "10.65.0.0/24", **spec: Any) -> Json:
    return document("IPPool", name, {"cidr": cidr, **spec})


RESERVATION = document("IPReservation", "gateways", {"reservedCIDRs": ["10.65.0.0/30"]})
SETTINGS = document("IPAMConfiguration", "default", {"strictAffinity": True, "maxBlocksPerHost": 4})
ENDPOINT = document("HostEndpoint", "node1-eth0", {"node": "node1", "interfaceName": "eth0"}, labels={"rack": "a"})
POLICY = document("NetworkPolicy", "deny", {"selector": "app == 'web'"}, namespace="default", labels={"team": "web"})
GLOBAL_POLICY = document("GlobalNetworkPolicy", "open", {"order": 10, "egress": [{"action": "Allow"}], "doNotTrack": False})
INSTALLATION: Json = {
    "apiVersion": DEFAULT.operator_api_version,
    "kind": "Installation",
    "metadata": {"name": "default"},
    "spec": {"cni": {"type": "Svc"}, "svcNetwork": {"mtu": 1400}, "registry": "registry.example/"},
}
EVERY = (pool(), RESERVATION, SETTINGS, ENDPOINT)


def text(*documents: Any) -> str:
    return yaml.safe_dump_all(documents)


def shown(cli: Cli, *arguments: str) -> list[Json]:
    found: list[Json] = json.loads(cli.prints("get", *arguments, "-o", "json"))
    return found


def references(cli: Cli, kinds: str = KINDS) -> list[str]:
    return cli.prints("get", kinds, "-o", "name").split()


def without_revision(documents: list[Json]) -> Iterator[Json]:
    for each in documents:
        metadata = {name: value for name, value in each["metadata"].items() if name != "resourceVersion"}
        yield each | {"metadata": metadata}
