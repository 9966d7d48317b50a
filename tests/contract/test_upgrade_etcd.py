"""Manifests whose datastore is etcd: the Secret with the files for TLS is carried, and etcd is asked."""

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy
from harness.etcd import Cluster, cluster
from harness.etcd_release import (
    FILES,
    NO_PATHS,
    PATHS,
    SECRET,
    SECRET_STEP,
    Certificates,
    live_secret,
    note_version,
    release,
    secret,
)
from harness.fake_kubelets import FakeKubelets
from harness.guarded_writes import nothing_written, raced_writes, require_guards, watched_writes
from harness.kube import Kube
from harness.upgrade_faults import FAULTS, Killer, fail_writes, kill_at_writes, killing
from harness.upgrade_fixtures import server_with
from harness.upgrade_site import DAEMON_SET, SYSTEM, UpgradeSite, config, container, daemon_set, running_site
from svc.netconf.names_profiles import load_profile
from svc.upgrade.writer import Writer

pytestmark = pytest.mark.server
server = server_with("daemonset", "deployment", "replicaset")

Json = dict[str, Any]


@pytest.fixture(scope="module")
def kubelets(server: Kube) -> Iterator[FakeKubelets]:
    """Yield nodes on which the second container of the agent's pods does not become ready: 1 of 2."""
    with FakeKubelets(server, ["node1", "node2"]).running() as made:
        made.unready.add("second")
        yield made


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def client(certificates: Certificates) -> dict[str, str]:
    """Return the entries of a Secret."""
    return certificates.client("client")


@pytest.fixture(scope="module")
def secured(certificates: Certificates, client: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("secured")
    with cluster(folder, tls=certificates.server) as made:
        note_version(made, "v0.1", folder, client)
        yield made


@pytest.fixture
def empty(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpgradeSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    kubelets.stuck.clear()
    yield from running_site(server, tmp_path)


@pytest.fixture
def site(empty: UpgradeSite, secured: Cluster, client: dict[str, str]) -> UpgradeSite:
    """Return a cluster with a former release, whose Secret was filled in before it was applied."""
    empty.install(release("0.1.0", secured.endpoints, PATHS, client))
    return empty


def newer(secured: Cluster) -> list[Json]:
    """Return the newer release, with an empty Secret, as it is shipped."""
    return release("0.1.1", secured.endpoints, PATHS)


def test_plan_apply_and_undo(site: UpgradeSite, secured: Cluster, client: dict[str, str]) -> None:
    """The procedure is found, the Secret keeps its entries, and pods pass with one of two containers."""
    documents = newer(secured)
    before = site.state(documents)
    planned = site.run("plan", documents=documents)
    assert planned.exit_code == 0, planned.output
    assert "procedure: manifests-etcd" in planned.stdout
    assert not any(text in planned.output for text in client.values())
    done = site.run("apply", documents=documents)
    assert done.exit_code == 0, done.output
    assert live_secret(site) == client
    assert site.kube.call("GET", SECRET)["metadata"]["labels"] == {"release": "0.1.1"}
    assert site.kube.call("GET", DAEMON_SET)["status"].get("numberAvailable", 0) == 0
    record = site.record()
    assert record
    assert int(record["noted"].partition(": ")[2].strip('"}')) > 1
    assert record["procedure"] == "manifests-etcd"
    with nothing_written():
        again = site.run("apply", documents=documents)
    assert again.stdout == "nothing to do\n", again.output
    undone = site.run("undo")
    assert undone.exit_code == 0, undone.output
    assert site.state(documents) == before


def test_each_write_names_what_it_was_made_for(site: UpgradeSite, secured: Cluster, client: dict[str, str]) -> None:
    """By a resourceVersion, a test or a UID. A write that another program was faster than is refused, and read again."""
    documents = newer(secured)
    before = site.state(documents)
    for verb in ("apply", "undo"):
        with watched_writes() as found, raced_writes(site.kube) as races:
            done = site.run(verb, documents=documents)
        assert done.exit_code == 0, done.output
        require_guards(found)
        races.require_conflicts()
        assert live_secret(site) == client
    assert site.state(documents) == before


def test_without_tls(empty: UpgradeSite, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with cluster(tmp_path / "plain") as plain:
        note_version(plain, "0.1.0", tmp_path, {})
        empty.install(release("0.1.0", plain.endpoints, NO_PATHS))
        documents = release("0.1.1", plain.endpoints, NO_PATHS)
        done = empty.run("apply", documents=documents)
        assert done.exit_code == 0, done.output
        assert live_secret(empty) == {}


def _documents(change: Callable[[list[Json], str], None]) -> Callable[[Cluster], list[Json]]:
    def made(secured: Cluster) -> list[Json]:
        documents = newer(secured)
        change(documents, secured.endpoints)
        return documents

    return made


def _set(**data: str) -> Callable[[list[Json], str], None]:
    return lambda documents, _: documents[0]["data"].update(data)


def _policy_only(documents: list[Json], _: str) -> None:
    documents[2]["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "USE_POD_CIDR", "value": "true"})


def _kubernetes(documents: list[Json], _: str) -> None:
    documents[:] = [config(mtu="1500"), daemon_set("svc:0.1.1")]


BAD = {
    "no addresses": (_set(etcd_endpoints=""), "has no etcd_endpoints"),
    "placeholder": (_set(etcd_endpoints="http://<ETCD_IP>:<ETCD_PORT>"), "is not the URL of an etcd server"),
    "no paths": (_set(**NO_PATHS), "does not name them"),
    "one path": (_set(etcd_key=""), "has no etcd_key: give all files for TLS, or none"),
    "other servers": (_set(etcd_endpoints="https://127.0.0.1:1"), "names other servers of etcd"),
    "policy-only": (_policy_only, "flavour policy-only"),
    "another datastore": (_kubernetes, "the datastore of the manifest is the Kubernetes API"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_manifest(site: UpgradeSite, secured: Cluster, name: str) -> None:
    """It is refused before the first write."""
    change, reason = BAD[name]
    before = site.everything()
    refused = site.run("apply", documents=_documents(change)(secured))
    assert refused.exit_code == 3, refused.output
    assert reason in refused.stderr
    assert site.everything() == before


def test_server_that_is_not_reached(site: UpgradeSite, secured: Cluster, tmp_path: Path) -> None:
    """One server of two does not answer: this is shown before the first write."""
    documents = newer(secured)
    documents[0]["data"]["etcd_endpoints"] += ",https://127.0.0.1:1"
    refused = site.run("plan", documents=documents)
    assert refused.exit_code == 3, refused.output
    assert "etcd at https://127.0.0.1:1 cannot be used" in refused.output


def test_secret_of_another_authority(site: UpgradeSite, secured: Cluster, tmp_path: Path) -> None:
    site.edit(SECRET, {"data": Certificates(tmp_path).client("stranger")})
    refused = site.run("apply", documents=newer(secured))
    assert refused.exit_code == 3, refused.output
    assert "cannot be used" in refused.stderr


def test_secret_with_a_missing_key(site: UpgradeSite, secured: Cluster) -> None:
    site.edit(SECRET, {"data": {"etcd-key": None}})
    refused = site.run("apply", documents=newer(secured))
    assert refused.exit_code == 3, refused.output
    assert f"{SECRET_STEP} lacks etcd-key" in refused.stderr


def test_manifest_with_another_key(site: UpgradeSite, secured: Cluster, certificates: Certificates) -> None:
    documents = newer(secured)
    documents[1] = secret(certificates.client("another"))
    refused = site.run("apply", documents=documents)
    assert refused.exit_code == 3, refused.output
    assert f"{SECRET_STEP} has another etcd-cert than the manifest" in refused.stderr


def test_procedure_for_the_other_datastore(site: UpgradeSite, secured: Cluster) -> None:
    refused = site.run("plan", "--procedure", "manifests", documents=newer(secured))
    assert refused.exit_code == 3
    assert "the datastore of the cluster is etcd" in refused.output


def _at_the_write(monkeypatch: pytest.MonkeyPatch, site: UpgradeSite, change: Json, when: str) -> None:
    """Edit the Secret once, before or after svcctl writes it."""
    write, edits = Writer.apply, itertools.count()

    def apply(self: Writer, document: Json, live: Json) -> Json:
        is_first = document["kind"] == "Secret" and next(edits) == 0
        if is_first and when == "before":
            site.edit(SECRET, {"data": change})
        found = write(self, document, live)
        if is_first and when == "after":
            site.edit(SECRET, {"data": change})
        return found

    monkeypatch.setattr(Writer, "apply", apply)


def test_secret_edited_while_it_is_carried(
    site: UpgradeSite, secured: Cluster, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edit is found and told, and not lost."""
    renewed = certificates.client("renewed") | {"more": "eA=="}
    _at_the_write(monkeypatch, site, renewed, "before")
    done = site.run("apply", documents=newer(secured))
    assert done.exit_code == 0, done.output
    assert live_secret(site) == renewed
    assert "its content was edited during the run, and is kept" in done.stderr
    assert site.kube.call("GET", SECRET)["metadata"]["labels"] == {"release": "0.1.1"}


def test_secret_that_loses_a_key_after_the_write(
    site: UpgradeSite, secured: Cluster, client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys are compared after the write."""
    _at_the_write(monkeypatch, site, {"etcd-key": None}, "after")
    refused = site.run("apply", documents=newer(secured))
    assert refused.exit_code == 3, refused.output
    assert f"{SECRET_STEP} has lost etcd-key" in refused.stderr
    site.edit(SECRET, {"data": client})
    done = site.run("apply", documents=newer(secured))
    assert done.exit_code == 0, done.output
    assert live_secret(site) == client


def test_version_of_another_release(site: UpgradeSite, secured: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """ClusterInformation is read from etcd, where no agent notes the version here."""
    monkeypatch.setattr("svc.upgrade.engine.SETTLE_SECONDS", 0.2)
    documents = release("0.2.0", secured.endpoints, PATHS)
    failed = site.run("apply", "--to", "v0.2.0", documents=documents)
    assert failed.exit_code == 6, failed.output
    assert "version 'v0.1', which does not match ^v?0\\.2(\\.|$)" in failed.stderr


def test_stuck_agent_is_named(site: UpgradeSite, secured: Cluster, kubelets: FakeKubelets) -> None:
    kubelets.stuck["node2"] = ("ImagePullBackOff", "no such image")
    late = site.run("apply", "--timeout", "3s", documents=newer(secured))
    assert late.exit_code == 5, late.output
    assert "node node2, pod svc-node-" in late.stderr
    kubelets.stuck.clear()
    assert site.run("apply", documents=newer(secured)).exit_code == 0


def test_verify_with_a_bad_manifest(site: UpgradeSite, secured: Cluster) -> None:
    documents = _documents(_set(etcd_endpoints="http://<ETCD_IP>:<ETCD_PORT>"))(secured)
    failed = site.run("verify", documents=documents)
    assert failed.exit_code == 6, failed.output
    assert "is not the URL of an etcd server" in failed.stderr
    assert "has no DaemonSet of the agent" in site.run("verify", documents=documents[:2]).stderr


def _calico(version: str, endpoints: str) -> list[Json]:
    """Return the objects of Calico with etcd, as far as they matter here."""
    labels = {"k8s-app": "calico-node"}
    reference = {"configMapKeyRef": {"name": "calico-config", "key": "etcd_endpoints"}}
    agent = {"name": "calico-node", "image": f"docker.io/calico/node:{version}"}
    pod = {"containers": [agent | {"env": [{"name": "ETCD_ENDPOINTS", "valueFrom": reference}]}]}
    volume = {"name": "etcd-certs", "secret": {"secretName": "calico-etcd-secrets", "defaultMode": 0o400}}
    data = {
        "etcd_endpoints": endpoints,
        **NO_PATHS,
        "cni_network_config": '{"etcd_endpoints": "__ETCD_ENDPOINTS__", "mtu": __MTU__}',
    }
    found: list[Json] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "calico-config"}, "data": data},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "calico-etcd-secrets"}, "type": "Opaque", "data": None},
        {
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "calico-node"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod | {"volumes": [volume]}},
            },
        },
    ]  # fmt: skip
    for each in found:
        each["metadata"]["namespace"] = SYSTEM
    return found


def test_calico(empty: UpgradeSite, tmp_path: Path) -> None:
    """Its names, its ConfigMap with a template, and its version of two numbers."""
    (tmp_path / "plain").mkdir()
    kube = empty.kube
    with cluster(tmp_path / "plain") as plain:
        note_version(plain, "v3.29", tmp_path, {}, load_profile("calico"))
        empty.install(_calico("v3.26.4", plain.endpoints))
        documents = _calico("v3.29.1", plain.endpoints)
        done = empty.call("--names", "calico", *empty.words("apply", documents=documents))
        assert done.exit_code == 0, done.output
        (agent,) = kube.call("GET", DAEMON_SET.replace("svc", "calico"))["spec"]["template"]["spec"]["containers"]
        assert agent["image"] == "docker.io/calico/node:v3.29.1"
    kube.forget(f"configmaps/{SYSTEM}/calico-", f"secrets/{SYSTEM}/calico-")


def _controllers(documents: list[Json], *names: str) -> list[Json]:
    """Return documents whose controllers have these containers as well."""
    found = copy.deepcopy(documents)
    pod = found[-1]["spec"]["template"]["spec"]
    pod["containers"] += [container("other:1") | {"name": name} for name in names]
    return found


def test_controllers_are_ready_as_a_whole(site: UpgradeSite, secured: Cluster, kubelets: FakeKubelets) -> None:
    """1 of 2 is enough for the pod of a node, and not for that of the controllers, whose next pod is 2 of 2."""
    documents = _controllers(newer(secured), "sidecar")
    kubelets.unready.add("sidecar")
    try:
        late = site.run("apply", "--timeout", "4s", documents=documents)
    finally:
        kubelets.unready.remove("sidecar")
    assert late.exit_code == 5, late.output
    assert f"Deployment/{SYSTEM}/svc-controllers: 1 of 1 pods are updated, 0 available" in late.stderr
    record = site.record()
    assert record
    assert record["steps"][f"DaemonSet/{SYSTEM}/svc-node"] == "done"
    assert record["steps"][f"Deployment/{SYSTEM}/svc-controllers"] == "waiting"
    site.kube.forget(f"pods/{SYSTEM}/svc-controllers-")
    done = site.run("apply", documents=documents)
    assert done.exit_code == 0, done.output
    live = site.kube.call("GET", f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/svc-controllers")
    assert live["status"]["readyReplicas"] == 1
    assert site.kube.call("GET", DAEMON_SET)["status"].get("numberReady", 0) == 0


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


def _fresh(site: UpgradeSite, secured: Cluster, client: dict[str, str]) -> Callable[[], None]:
    def prepare() -> None:
        site.clear()
        site.install(release("0.1.0", secured.endpoints, PATHS, client))

    return prepare


def _ended(site: UpgradeSite, client: dict[str, str]) -> Callable[[], None]:
    def check() -> None:
        assert live_secret(site) == client
        found = site.kube.call("GET", DAEMON_SET)["spec"]["template"]["spec"]["containers"][0]["image"]
        record = site.record()
        assert record
        assert (found, record["state"]) == ("svc:0.1.1", "done")
        assert set(FILES) < set(site.kube.call("GET", f"/api/v1/namespaces/{SYSTEM}/configmaps/svc-settings")["data"])

    return check


def _ways(
    site: UpgradeSite, secured: Cluster, client: dict[str, str], verb: str
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what makes the cluster as it is before a run, and what checks its end."""
    fresh, ended, documents = _fresh(site, secured, client), _ended(site, client), newer(secured)
    if verb == "apply":
        return fresh, ended
    before = site.state(documents)

    def applied() -> None:
        fresh()
        done = site.run("apply", documents=documents)
        assert done.exit_code == 0, done.output

    def undone() -> None:
        record = site.record()
        assert record
        assert (site.state(documents), record["state"]) == (before, "undone")

    return applied, undone


@pytest.mark.long
@pytest.mark.parametrize(("verb", "step"), [("apply", 8), ("undo", 8), ("apply", 1), ("undo", 1)])
def test_kill_at_each_write(
    site: UpgradeSite, secured: Cluster, client: dict[str, str], killer: Killer, verb: str, step: int
) -> None:
    words = site.words(verb, documents=newer(secured))
    print(verb, kill_at_writes(killer, words, *_ways(site, secured, client, verb), step))


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("name", ["each in turn", *FAULTS])
def test_every_fault_at_each_write(
    site: UpgradeSite, secured: Cluster, client: dict[str, str], server: Kube, verb: str, name: str
) -> None:
    documents = copy.deepcopy(newer(secured))
    with ApiProxy(server) as proxy:

        def run() -> Any:
            return site.run(verb, documents=documents, server=proxy.url)

        faults = itertools.repeat(name) if name in FAULTS else itertools.cycle(FAULTS)
        print(verb, name, fail_writes(proxy, run, *_ways(site, secured, client, verb), faults))
