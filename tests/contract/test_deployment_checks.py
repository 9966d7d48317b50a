"""What `svcctl manifests --apply` refuses before its first write, because of what a real API server has."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.deployments import manifests, remove, svcctl
from harness.kube import Kube, running
from svc.datastore.open import open_client
from svc.deploy.server_apply import apply

pytestmark = pytest.mark.server

Json = dict[str, Any]
INSTALLATION = "apiVersion: operator.svc.internal/v1\nkind: Installation\nmetadata: {name: default}\nspec: {}\n"
SHARED = (
    "/apis/apps/v1/namespaces/kube-system/daemonsets/svc-node",
    "/api/v1/namespaces/kube-system/configmaps/cni-config",
    "/apis/apps/v1/namespaces/kube-system/deployments",
)
POOL_PATH = "/apis/crd.svc.internal/v1/ippools/default-ipv4-ippool"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with running(tmp_path_factory.mktemp("server"), has_workloads=True) as server:
        yield server


@pytest.fixture
def server(shared: Kube) -> Iterator[Kube]:
    yield shared
    remove(shared)


def applied(server: Kube, folder: Path, *options: str) -> None:
    done = manifests(server, folder, "--apply", *options)
    assert done.exit_code == 0, done.output


def has_role(server: Kube) -> bool:
    """Return whether the first role of svc exists, which each deployment has."""
    listed = server.call("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
    return any(each["metadata"]["name"].startswith("svc-") for each in listed)


def apply_as(server: Kube, folder: Path, manager: str, *options: str) -> None:
    """Apply what `svcctl manifests` prints, as another program."""
    printed = manifests(server, folder, *options).output
    with closing(open_client({"kubeconfig": str(folder / "kubeconfig")})) as client:
        assert [*apply(client, [*yaml.safe_load_all(printed)], manager=manager)]


def refusal(server: Kube, folder: Path, *options: str) -> str:
    """Return the message of a refusal, which a dry run has too."""
    rehearsed = manifests(server, folder, "--apply", "--dry-run", *options)
    done = manifests(server, folder, "--apply", *options)
    assert (rehearsed.exit_code, done.exit_code) == (1, 1), done.output
    assert rehearsed.output == done.output
    assert " applied\n" not in done.output
    return str(done.output)


def test_range_of_a_present_pool_cannot_change(server: Kube, tmp_path: Path) -> None:
    applied(server, tmp_path, "--pool", "10.244.0.0/16")
    error = refusal(server, tmp_path, "--pool", "10.99.0.0/16", "--image", "svc:other")
    assert "spec.cidr = '10.99.0.0/16' cannot replace '10.244.0.0/16': create a pool of another name" in error
    assert server.call("GET", POOL_PATH)["spec"]["cidr"] == "10.244.0.0/16"
    stored = server.call("GET", "/apis/apps/v1/namespaces/kube-system/daemonsets/svc-node")
    assert stored["spec"]["template"]["spec"]["containers"][0]["image"] != "svc:other"


def test_pool_may_not_overlap_another_one(server: Kube, tmp_path: Path) -> None:
    applied(server, tmp_path)
    other = {"apiVersion": "crd.svc.internal/v1", "kind": "IPPool", "metadata": {"name": "a"}, "spec": {"cidr": "10.1.0.0/16"}}
    server.call("POST", POOL_PATH.rpartition("/")[0], other)
    error = refusal(server, tmp_path, "--pool", "10.0.0.0/8")
    assert "overlaps IP pool 'a' (10.1.0.0/16)" in error


@pytest.mark.parametrize("changes", [{"blockSize": 28}, {"natOutgoing": False, "vxlanMode": "Never"}, {}])
def test_a_present_pool_stays_as_it_is(server: Kube, tmp_path: Path, changes: Json) -> None:
    """What `svcctl pool apply` has set, or left out, is not changed, and no other program becomes the owner of a field."""
    applied(server, tmp_path)
    pool = {
        "apiVersion": "crd.svc.internal/v1",
        "kind": "IPPool",
        "metadata": {"name": "default-ipv4-ippool"},
        "spec": {"cidr": "10.244.0.0/16", **changes},
    }
    before = server.call("POST", POOL_PATH.rpartition("/")[0], pool)
    done = manifests(server, tmp_path, "--apply", "--pool", "10.244.0.0/16")
    assert done.exit_code == 0, done.output
    assert "IPPool default-ipv4-ippool kept: it exists, and is not changed\n" in done.output
    assert server.call("GET", POOL_PATH) == before


def test_settings_of_an_own_pool_stay_after_a_change(server: Kube, tmp_path: Path) -> None:
    """The first apply creates it, and no later one, also of another program, sets a field back."""
    applied(server, tmp_path, "--pool", "10.244.0.0/16")
    assert server.call("GET", POOL_PATH)["spec"] == {"cidr": "10.244.0.0/16", "vxlanMode": "CrossSubnet", "natOutgoing": True}
    server.call("PATCH", POOL_PATH, {"spec": {"vxlanMode": "Always", "natOutgoing": None}}, "application/merge-patch+json")
    before = server.call("GET", POOL_PATH)
    applied(server, tmp_path, "--pool", "10.244.0.0/16")
    assert server.call("GET", POOL_PATH) == before


def test_a_deployment_without_a_pool_is_noted(server: Kube, tmp_path: Path) -> None:
    assert "note: no pool exists" in manifests(server, tmp_path, "--apply").output
    assert "note: no pool exists" not in manifests(server, tmp_path, "--apply", "--pool", "10.244.0.0/16").output
    assert "note: no pool exists" not in manifests(server, tmp_path, "--apply").output


def role(name: str, *verbs: str) -> Json:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": list(verbs)}]
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}


def workload(kind: str, name: str) -> Json:
    labels = {"k8s-app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "kube-system"}, "spec": spec}


def test_objects_of_another_product_stay(server: Kube, tmp_path: Path) -> None:
    """The names profile `calico` has the names of Calico's own objects. The error has a line for each."""
    roles, workloads = "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/apps/v1/namespaces/kube-system"
    made = [
        (roles, role("calico-cni-plugin", "get", "list")),
        (f"{workloads}/daemonsets", workload("DaemonSet", "svc-node")),
        (f"{workloads}/deployments", workload("Deployment", "calico-kube-controllers")),
    ]
    paths = [f"{path}/{document['metadata']['name']}" for path, document in made]
    for path, document in made:
        server.call("POST", path, document)
    before = [server.call("GET", path) for path in paths]
    try:
        error = refusal(server, tmp_path, "--names", "calico")
        assert "ClusterRole calico-cni-plugin exists, and svcctl has not applied it" in error
        for name in ("DaemonSet kube-system/svc-node", "Deployment kube-system/calico-kube-controllers"):
            assert f"{name} exists, and selects other pods" in error
        assert error.count("update it with the program that made it") == 3
        assert [server.call("GET", path) for path in paths] == before
    finally:
        for path in paths:
            server.call("DELETE", path)


def test_svc_with_other_names_makes_no_role_its_own(server: Kube, tmp_path: Path) -> None:
    """The DaemonSet has the same name with each names profile."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    applied(server, tmp_path)
    server.call("POST", path, role("calico-cni-plugin", "get", "list"))
    try:
        error = refusal(server, tmp_path, "--names", "calico")
        assert "ClusterRole calico-cni-plugin exists, and svcctl has not applied it" in error
    finally:
        server.call("DELETE", f"{path}/calico-cni-plugin")


@pytest.mark.parametrize(("former", "other"), [((), "calico"), (("--names", "calico"), "default")])
def test_svc_with_other_names_stays(server: Kube, tmp_path: Path, former: tuple[str, ...], other: str) -> None:
    """Both would have one DaemonSet and one network list. Each object that collides is named, and nothing is written."""
    applied(server, tmp_path, *former)
    before = [server.call("GET", path) for path in SHARED]
    error = refusal(server, tmp_path, "--names", other, "--image", "svc:other")
    for name in ("DaemonSet kube-system/svc-node", "ConfigMap kube-system/cni-config"):
        line = next(line for line in error.splitlines() if name in line)
        assert f"is of svc with other names: give --names {former[-1] if former else 'default'}," in line
    assert [server.call("GET", path) for path in SHARED] == before
    applied(server, tmp_path, *former, "--image", "svc:other")


def test_network_list_of_the_user_stays(server: Kube, tmp_path: Path) -> None:
    path = "/api/v1/namespaces/kube-system/configmaps"
    own = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cni-config"}, "data": {"config": "{}"}}
    server.call("POST", path, own)
    assert "ConfigMap kube-system/cni-config exists, and is another's" in refusal(server, tmp_path)


def test_deployment_of_another_program_is_continued(server: Kube, tmp_path: Path) -> None:
    """kubectl or helm has applied it. The roles of another flavour, or of another release, may differ."""
    apply_as(server, tmp_path, "kubectl", "--flavour", "overlay", "--image", "svc:older")
    applied(server, tmp_path)


def test_objects_of_a_proxy_are_applied_again(server: Kube, tmp_path: Path) -> None:
    """They need no labels of svc. The user has given them."""
    file = tmp_path / "proxy.yaml"
    metadata = "metadata: {name: proxy, namespace: default}"
    for content in ("a", "b"):
        file.write_text(f"apiVersion: v1\nkind: ConfigMap\n{metadata}\ndata: {{key: {content}}}\n")
        applied(server, tmp_path, "--proxy", str(file))
    assert server.call("GET", "/api/v1/namespaces/default/configmaps/proxy")["data"] == {"key": "b"}


def test_interrupted_apply_is_continued(server: Kube, tmp_path: Path) -> None:
    """The workloads come after the roles, so they are not there yet. Another flavour has other rules."""
    applied(server, tmp_path, "--flavour", "overlay")
    server.forget("daemonsets/", "deployments/")
    applied(server, tmp_path)


@pytest.mark.parametrize("manager", ["svcctl", "kubectl"])
def test_another_namespace_does_not_take_the_rights(server: Kube, tmp_path: Path, manager: str) -> None:
    """The bindings are of the cluster, and have one namespace. The refusal names it."""
    apply_as(server, tmp_path, manager, "--namespace", "net")
    binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/svc-node"
    before = server.call("GET", binding)
    error = refusal(server, tmp_path)
    assert "ClusterRoleBinding svc-node is for svc in the namespace net: give --namespace net" in error
    assert server.call("GET", binding) == before
    applied(server, tmp_path, "--namespace", "net", "--flavour", "overlay")


def test_network_list_of_an_installation_stays(server: Kube, tmp_path: Path) -> None:
    """Without the operator's controller, too: `svcctl installation apply` has written it. The operator itself is updated."""
    applied(server, tmp_path, "--flavour", "operator")
    file = tmp_path / "installation.yaml"
    file.write_text(INSTALLATION)
    written = svcctl("installation", "apply", "-f", str(file), "--kubeconfig", str(tmp_path / "kubeconfig"))
    assert written.exit_code == 0, written.output
    path = "/api/v1/namespaces/kube-system/configmaps/cni-config"
    before = server.call("GET", path)
    error = refusal(server, tmp_path)
    assert "ConfigMap kube-system/cni-config belongs to the Installation: change that" in error
    assert server.call("GET", path) == before
    applied(server, tmp_path, "--flavour", "operator")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            ("--crds", "with-rules"),
            "--crds with-rules needs Kubernetes 1.25, and the API server has 1.20: give --crds without-rules",
        ),
        (("--policy-api", "policy/v1"), "does not serve PodDisruptionBudget of policy/v1: give --policy-api policy/v1beta1"),
        (("--update", "surge"), "--update surge needs Kubernetes 1.22, and the API server has 1.20: give --update replace"),
    ],
)
def test_options_for_newer_servers_are_refused(server: Kube, tmp_path: Path, options: tuple[str, ...], error: str) -> None:
    assert error in refusal(server, tmp_path, *options)
    assert not has_role(server)


def test_all_contradictory_options_are_named_at_once(server: Kube, tmp_path: Path) -> None:
    options = ("--crds", "with-rules", "--update", "surge", "--image", "A B", "--pool", "10.0.0.0/16", "--flavour", "overlay")
    error = refusal(server, tmp_path, *options)
    for each in ("--crds with-rules needs", "--update surge needs", "--image 'A B' is not", "pools are given in vain"):
        assert sum(each in line for line in error.splitlines()) == 1, error
    assert not has_role(server)


@pytest.mark.parametrize("namespace", ["kube-system", "net"])
@pytest.mark.parametrize(
    ("more", "error"),
    [("command: sh", "command"), ("imgae: b", ".imgae"), ("ports: [{containerPort: 99999}]", "containerPort")],
)
def test_refused_policy_agent_leaves_nothing_half_applied(
    server: Kube, tmp_path: Path, more: str, error: str, namespace: str
) -> None:
    """The server checks objects before the first one is written, also for a namespace that does not exist yet."""
    agent = tmp_path / "agent.yaml"
    agent.write_text(f"name: policy\nimage: a:1\n{more}\n")
    options = ("--flavour", "policy-only", "--policy-agent", str(agent), "--namespace", namespace)
    message = refusal(server, tmp_path, *options)
    assert f"DaemonSet {namespace}/svc-node: " in message
    assert error in message
    assert not has_role(server)


def test_all_missing_rights_are_named_at_once(server: Kube, tmp_path: Path) -> None:
    """For reading and for writing. The remedy names the option of the command."""
    for more in (("--dry-run",), ()):
        done = manifests(server, tmp_path, "--apply", *more, token="token-of-nobody")
        assert done.exit_code == 1
        lines = [line for line in done.output.splitlines() if "403" in line]
        for name in ("ClusterRole svc-node: GET", "ClusterRole svc-node: PATCH", "DaemonSet kube-system/svc-node: PATCH"):
            assert any(name in line for line in lines), done.output
        assert all(line.endswith("use the kubeconfig of an administrator, with --kubeconfig") for line in lines)
    assert not has_role(server)


@pytest.mark.parametrize("command", ["apply", "diff", "status"])
def test_missing_rights_for_an_installation_name_the_option(server: Kube, tmp_path: Path, command: str) -> None:
    applied(server, tmp_path, "--flavour", "operator")
    file = tmp_path / "installation.yaml"
    file.write_text(INSTALLATION)
    kubeconfig = server.kubeconfig(tmp_path / "nobody", "token-of-nobody")
    done = svcctl("installation", command, "-f", str(file), "--kubeconfig", str(kubeconfig))
    assert done.exit_code == 1
    assert "403" in done.output
    assert "use the kubeconfig of an administrator, with --kubeconfig" in done.output
