"""Two nodes with host endpoints that were made by hand, and `svcctl upgrade --procedure host-endpoints` of an administrator."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from harness.controllers import Cluster
from harness.datastores import OrchSite, session, set_ready
from harness.ipam import put
from harness.orch import NODES
from svc.ctl.main import main
from svc.model.controllers_configuration import KEY
from svc.model.host_endpoint import ALL_INTERFACES, KIND, is_automatic
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT

HOSTS = ("hep-a", "hep-b")
PROCEDURE = ("--procedure", "host-endpoints")
WATCHED = f"/apis/{DEFAULT.crd_api_version}/hostendpoints"
END = "end-of-watch"  # the name of a host endpoint that ends a watch


class Hosts:
    """Two nodes, each with a host endpoint that was made by hand, and svcctl of the administrator."""

    def __init__(self, site: OrchSite, controllers: Cluster, folder: Path) -> None:
        self.site = site
        self.controllers = controllers
        self.kubeconfig = site.kube.kubeconfig(folder / "administrator-of-upgrades")
        self.state_dir = folder / "state"

    def furnish(self) -> None:
        with session(self.site) as store:
            set_ready(store)
        for number, host in enumerate(HOSTS, 1):
            self.site.add_node(host, rack="r1")
            body = {"status": {"addresses": [{"type": "InternalIP", "address": f"192.0.2.{number}"}]}}
            self.site.kube.call("PATCH", f"{NODES}/{host}/status", body, "application/merge-patch+json")
            spec = {"node": host, "interfaceName": ALL_INTERFACES, "expectedIPs": [f"192.0.2.{number}"], "profiles": ["mine"]}
            self.put(f"old-{host}", {"role": "edge", "rack": "r1"}, spec)

    def put(self, name: str, labels: dict[str, str], spec: dict[str, Any]) -> None:
        with session(self.site) as store:
            put(store, ResourceKey(KIND, name), Resource(KIND, {"name": name, "labels": labels}, spec))

    def endpoints(self) -> dict[str, Resource]:
        with session(self.site) as store:
            return {entry.value.name: entry.value for entry in store.list(ResourceQuery(KIND))}

    def content(self) -> dict[str, tuple[dict[str, str], Any]]:
        """Return labels and spec of the host endpoints that were made by hand."""
        found = self.endpoints().values()
        return {each.name: (each.labels, each.spec) for each in found if not is_automatic(DEFAULT, each)}

    def labels(self, host: str) -> dict[str, str]:
        found: dict[str, str] = self.site.kube.call("GET", f"{NODES}/{host}")["metadata"]["labels"]
        return found

    def switch(self) -> Any:
        with session(self.site) as store:
            entry = store.find(KEY)
        return entry and entry.value.spec["controllers"]["node"]["hostEndpoint"]["autoCreate"]

    def run(self, verb: str, *arguments: str, timeout: str = "60s", server: str = "") -> Result:
        """Run svcctl in this process. A server is that of a proxy."""
        return CliRunner().invoke(main, self.words(verb, *arguments, timeout=timeout, server=server))

    def words(self, verb: str, *arguments: str, timeout: str = "60s", server: str = "") -> list[str]:
        """Return the arguments of svcctl."""
        kubeconfig = self.kubeconfig
        if server:
            kubeconfig = kubeconfig.with_name("through-proxy")
            kubeconfig.write_text(self.kubeconfig.read_text().replace(self.site.kube.url, server))
        words = ["--state-dir", str(self.state_dir), "upgrade", verb, "--kubeconfig", str(kubeconfig), *arguments]
        words += [] if verb in ("undo", "status") else PROCEDURE
        return [*words, "--timeout", timeout] if verb in ("apply", "undo") else words

    @contextmanager
    def never_without(self) -> Iterator[None]:
        """Fail if a node has after any change of the block no host endpoint for all interfaces."""
        bare, seen = set[str](), set[str]()

        def watch(events: Iterator[dict[str, Any]]) -> None:
            present: dict[str, Any] = {}
            for event in events:
                name, spec = event["object"]["metadata"]["name"], event["object"].get("spec")
                if name == END:
                    return
                present = {key: value for key, value in present.items() if key != name}
                present |= {} if event["type"] == "DELETED" else {name: spec}
                covered = {each["node"] for each in present.values() if each["interfaceName"] == ALL_INTERFACES}
                seen.update(covered)
                bare.update(seen - covered)

        with self.site.kube.watching(WATCHED) as events:
            thread = threading.Thread(target=watch, args=(events,))
            thread.start()
            try:
                yield
            finally:
                self.put(END, {}, {"node": HOSTS[0], "interfaceName": "eth9"})
                thread.join()
                self.site.kube.call("DELETE", f"{WATCHED}/{END}")
        assert (seen, bare) == (set(HOSTS), set())
