"""The versions of node agents."""

from typing import Any

from harness.memory_writer import MemoryWriter
from harness.upgrade_site import daemon_set
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import load_profile
from svc.upgrade.agent_pods import agent_versions

Json = dict[str, Any]


class Listing(MemoryWriter):
    """A cluster whose server selects objects by their names."""

    def items(self, path: str, *, metadata_only: bool = False, **params: str) -> Any:
        wanted = params.get("fieldSelector", "").removeprefix("metadata.name=")
        yield from (each for each in super().items(path) if wanted in ("", each["metadata"]["name"]))

    def folder(self, place: Any) -> str:
        return "/pods"


def cluster(name: str, namespace: str, image: str, names: Names) -> Listing:
    agent = daemon_set(image)
    agent |= {"metadata": {"name": name, "namespace": namespace}}
    spec = agent["spec"]["template"]["spec"] | {"nodeName": "one"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": namespace}, "spec": spec}
    return Listing(agent, pod, names=names)


def test_agent_of_an_operator_counts() -> None:
    """It is in a namespace of its own."""
    names = load_profile("calico")
    assert list(agent_versions(cluster("calico-node", "calico-system", "calico/node:v3.14.0", names))) == [("one", "v3.14.0")]
    assert list(agent_versions(cluster("svc-node", "svc-system", "svc:0.1.0", DEFAULT))) == [("one", "0.1.0")]


def test_svc_beside_the_agent_of_another_product_does_not_count() -> None:
    assert list(agent_versions(cluster("svc-node", "kube-system", "svc:0.1.0", load_profile("calico")))) == []
