"""svcctl that moves a datastore by the procedure, on the two datastores of `move_sites`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from harness.datastores import EtcdSite, OrchSite
from harness.ipam import put
from harness.kube import Refused
from harness.move_sites import NETWORK, NODES, PODS, Sites, furnish, open_sites
from svc.ctl.main import main
from svc.model.claim import Claimant, NodeClaim
from svc.model.keys import NodeClaimKey

Json = dict[str, Any]

SYSTEM = "kube-system"
STEPS = (
    "lock-source", "calls-in-flight", "admit-target", "import-documents", "pod-endpoints", "compare-datastores",
    "enable-pools", "switch-over", "moved-nodes",
)  # fmt: skip


class MoveProcedure:
    """The datastores, network configurations that name them, and svcctl of an administrator."""

    def __init__(self, sites: Sites, etcd_site: EtcdSite, orch_site: OrchSite, folder: Path) -> None:
        self.sites, self.kube, self.folder = sites, orch_site.kube, folder
        self.etcd_site, self.orch_site = etcd_site, orch_site
        self.kubeconfig = orch_site.administrator
        self.state_dir = folder / "state"
        self.manifest: Path | None = None
        self.files = {"etcd": self._file("etcd", etcd_site.config), "kube": self._file("kube", orch_site.config)}

    def _file(self, name: str, config: Json) -> Path:
        file = self.folder / f"{name}.json"
        plugin = {"cniVersion": "1.1.0", "name": NETWORK, "type": "svc", "ipam": {"type": "svc-ipam"}}
        file.write_text(json.dumps(plugin | config))
        return file

    def words(self, verb: str, *arguments: str, back: bool = False, server: str = "") -> list[str]:
        """Return the arguments of svcctl for the move from etcd, or back. A server is that of a proxy."""
        kubeconfig = self.kubeconfig
        if server:
            kubeconfig = self.folder / "through-proxy"
            kubeconfig.write_text(self.kubeconfig.read_text().replace(self.kube.url, server))
        words = ["--state-dir", str(self.state_dir), "upgrade", verb, "--kubeconfig", str(kubeconfig), *arguments]
        if verb in ("apply", "undo") and "--timeout" not in arguments:
            words += ["--timeout", "60s"]
        if verb in ("undo", "status"):
            return words
        words += ["--manifest", str(self.manifest)] if self.manifest else []
        source, target = ("kube", "etcd") if back else ("etcd", "kube")
        return [*words, "--procedure", "datastore", "--source", str(self.files[source]), "--target", str(self.files[target])]

    def run(self, verb: str, *arguments: str, back: bool = False, server: str = "") -> Result:
        """Run svcctl in this process."""
        return CliRunner().invoke(main, self.words(verb, *arguments, back=back, server=server))

    def succeeds(self, verb: str, *arguments: str, back: bool = False) -> Result:
        """Run svcctl, which must end well."""
        done = self.run(verb, *arguments, back=back)
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    def move(self, *, back: bool = False) -> None:
        """Move the datastore, and then the nodes, as their agents do."""
        waits = self.run("apply", "--timeout", "0s", back=back)
        assert waits.exit_code == 5, (waits.output, waits.exception)
        assert "have not moved" in waits.output
        self.roll(back=back)
        self.succeeds("apply", back=back)

    def roll(self, *, back: bool = False) -> None:
        """Claim the names of all nodes in the new datastore."""
        place = self.sites.etcd if back else self.sites.kube
        for etcd, kube in NODES.items():
            key = NodeClaimKey(etcd if back else kube)
            found = place.backend.find(key)
            counter = found.value.counter + 1 if found else 1
            put(place.backend, key, NodeClaim(Claimant("machine", "boot", f"state of {kube}"), counter))

    def record(self) -> Json | None:
        try:
            live = self.kube.call("GET", f"/api/v1/namespaces/{SYSTEM}/configmaps/svc-upgrade")
        except Refused:
            return None
        data: Json = live["data"]
        return data | {"steps": json.loads(data["steps"])}

    def forget(self) -> None:
        """Delete what runs have left in the cluster."""
        self.kube.forget(*(f"{kind}/{SYSTEM}/svc-" for kind in ("configmaps", "secrets", "leases")))


@contextmanager
def furnished(etcd_site: EtcdSite, orch_site: OrchSite, folder: Path, pods: tuple[str, ...] = PODS) -> Iterator[MoveProcedure]:
    """Open the datastores with content in etcd. Clear everything later."""
    with open_sites(etcd_site, orch_site, folder) as sites:
        furnish(etcd_site, orch_site, sites.etcd.backend, pods)
        made = MoveProcedure(sites, etcd_site, orch_site, folder)
        try:
            yield made
        finally:
            made.forget()
