"""The model of a deployment: structure, schemas of API servers, and that each program understands what it is given."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from svc.agent.main import _parser as agent_parser
from svc.controllers.main import _parser as controllers_parser
from svc.controllers.settings import read as read_settings
from svc.ctl.commands.install import install
from svc.ctl.commands.manifests import _version
from svc.ctl.main import main
from svc.deploy import rbac
from svc.deploy.discovery import Discovery
from svc.deploy.manifests.node import AGENT, INSTALL, INSTALL_WATCH, ROUTES, host_directories
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.pod_parts import certificate_paths
from svc.deploy.manifests.settings import (
    CONFIG_MAP,
    DATASTORES,
    ETCD,
    FLAVOURS,
    NETWORKING,
    NONE,
    OPERATOR,
    ORCH,
    OVERLAY,
    POLICY_ONLY,
    POLICY_V1BETA1,
    SYSTEM_NAMESPACE,
    WITH_RULES,
    WITHOUT_RULES,
    Settings,
)
from svc.deploy.manifests.yaml_text import to_yaml
from svc.deploy.server_apply import DEFINITION, describe
from svc.model.errors import CallerError
from svc.names import DEFAULT
from svc.netconf import netconf as netconfs
from svc.netconf.names_profiles import load_profile
from svc.routes.settings import parse as parse_routes
from svc.values import replace

Json = dict[str, Any]

CALICO = load_profile("calico")
IMAGE = "registry.example:5000/net/svc:1.2.3"
ETCD_OPTIONS = {"etcd_endpoints": "https://10.0.0.1:2379", "etcd_tls": True}
SERVERS = [f"1.{minor}" for minor in range(25, 38)]


def settings(flavour: str, datastore: str = ORCH, **more: Any) -> Settings:
    given: Json = (ETCD_OPTIONS if datastore == ETCD else {}) | more
    return Settings(flavour, datastore, IMAGE, **given)


PAIRS = [pair for pair in product(FLAVOURS, DATASTORES) if pair not in ((POLICY_ONLY, ETCD), (OPERATOR, ETCD))]
DEPLOYMENTS = [settings(*pair) for pair in PAIRS]
DEPLOYMENTS += [settings(*pair, names=CALICO, profile="calico", crds=NONE, namespace="net") for pair in PAIRS]
EVERY_DEPLOYMENT = pytest.mark.parametrize(
    "deployment", DEPLOYMENTS, ids=[f"{each.flavour}-{each.datastore}-{each.names.plugin}" for each in DEPLOYMENTS]
)


def of_kind(documents: list[Json], kind: str) -> list[Json]:
    return [each for each in documents if each["kind"] == kind]


def pods(documents: list[Json]) -> Iterator[Json]:
    for document in documents:
        if document["kind"] in ("DaemonSet", "Deployment"):
            yield document["spec"]["template"]["spec"]


def containers(pod: Json) -> list[Json]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def container(documents: list[Json], name: str) -> Json:
    (found,) = (each for pod in pods(documents) for each in containers(pod) if each["name"] == name)
    return found


def texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (text for value in node.values() for text in texts(value))
    elif isinstance(node, list):
        yield from (text for value in node for text in texts(value))
    elif isinstance(node, str):
        yield node


def netconf(deployment: Settings) -> Json:
    (config,) = of_kind(objects(deployment), "ConfigMap")
    (own,) = json.loads(config["data"]["config"])["plugins"]
    assert isinstance(own, dict)
    return own


@EVERY_DEPLOYMENT
def test_all_schemas_accept_the_objects(deployment: Settings) -> None:
    """Those of every Kubernetes release since 1.25, which also refuse unknown fields."""
    for document in objects(deployment):
        if document["kind"] != DEFINITION:  # its schemas are a language of their own
            for version in SERVERS:
                kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("crds", [WITH_RULES, WITHOUT_RULES])
@pytest.mark.parametrize("version", SERVERS)
def test_all_schemas_accept_the_definitions(crds: str, version: str) -> None:
    for document in of_kind(objects(settings(OPERATOR, crds=crds)), DEFINITION):
        kubernetes_validate.validate(document, version, strict=True)


def test_schemas_refuse_a_wrong_object() -> None:
    """The check above finds an unknown field."""
    (daemon_set,) = of_kind(objects(settings(NETWORKING)), "DaemonSet")
    daemon_set["spec"]["template"]["spec"]["hostNetwrok"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemon_set, SERVERS[0], strict=True)


@EVERY_DEPLOYMENT
def test_each_mount_has_a_volume_and_each_volume_a_mount(deployment: Settings) -> None:
    for pod in pods(objects(deployment)):
        volumes = [volume["name"] for volume in pod["volumes"]]
        mounts = [[mount["name"] for mount in each["volumeMounts"]] for each in containers(pod)]
        paths = [[mount["mountPath"] for mount in each["volumeMounts"]] for each in containers(pod)]
        assert len(volumes) == len(set(volumes))
        assert {name for names in mounts for name in names} == set(volumes)
        assert all(len(each) == len(set(each)) for each in paths)


@EVERY_DEPLOYMENT
def test_paths_of_the_host_are_the_same_inside(deployment: Settings) -> None:
    """A network configuration and the records name paths. The only other place is that of writable sysctls."""
    (pod,) = (pod for pod in pods(objects(deployment)) if "initContainers" in pod)
    host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    for each in containers(pod):
        places = {mount["mountPath"]: host[mount["name"]] for mount in each["volumeMounts"] if mount["name"] in host}
        elsewhere = {inside: outside for inside, outside in places.items() if inside != outside}
        assert elsewhere == ({"/host/proc/sys": "/proc/sys"} if each["name"] == AGENT else {})
        assert places.keys() >= set(host_directories(deployment))


@EVERY_DEPLOYMENT
def test_every_path_that_is_named_is_mounted(deployment: Settings) -> None:
    """Paths in arguments, in variables and in the network list."""
    documents = objects(deployment)
    named = set() if deployment.flavour == OPERATOR else set(texts(netconf(deployment)))
    for pod in pods(documents):
        for each in containers(pod):
            mounted = [mount["mountPath"] for mount in each["volumeMounts"]]
            own = {*each.get("args", ()), *texts(each["env"])} | (named if "initContainers" in pod else set())
            paths = {text for text in own if re.fullmatch(r"/[\w./-]+", text)}
            assert all(any(path == place or path.startswith(f"{place}/") for place in mounted) for path in paths), paths


@EVERY_DEPLOYMENT
def test_network_list_is_valid(deployment: Settings) -> None:
    """The installer replaces the placeholder. Name and type of datastore are explicit."""
    if deployment.flavour == OPERATOR:
        assert of_kind(objects(deployment), "ConfigMap") == []  # the operator writes it
        return
    names = deployment.names
    entry = netconf(deployment) | {"name": names.network, "cniVersion": "1.0.0", "nodename": "node1"}
    found = netconfs.read(entry, names)
    assert found.datastore.kind == (ORCH if deployment.is_orch else "etcdv3")
    assert found.ipam.is_delegated == deployment.uses_pod_cidrs
    assert netconf(deployment)["nodename"] == "__KUBERNETES_NODE_NAME__"
    assert dict(found.orchestrator)["kubeconfig"] == f"/etc/cni/net.d/{names.plugin}-kubeconfig"


@pytest.mark.parametrize(
    ("pools", "versions"),
    [((), (4,)), (("10.244.0.0/16",), (4,)), (("fd00::/48",), (6,)), (("10.244.0.0/16", "fd00::/48"), (4, 6))],
)
def test_pods_get_an_address_of_each_pool(pools: tuple[str, ...], versions: tuple[int, ...]) -> None:
    entry = netconf(settings(NETWORKING, pools=pools)) | {"name": "net", "cniVersion": "1.0.0", "nodename": "node1"}
    assert netconfs.read(entry, DEFAULT).ipam.versions == versions


@EVERY_DEPLOYMENT
def test_programs_understand_their_arguments(deployment: Settings) -> None:
    documents = objects(deployment)
    for name in (INSTALL, INSTALL_WATCH):
        each = container(documents, name)
        assert each["command"] == ["svcctl"]
        before, _, own = " ".join(each["args"]).partition(" install ")
        parent = main.make_context("svcctl", [*before.split(), "install"])
        parsed = None if deployment.profile else install.make_context("install", own.split(), parent=parent)
        assert parsed is None or parsed.params["watch"] == (name == INSTALL_WATCH)
    agent = container(documents, AGENT)
    assert agent["command"] == ["svc-agent"]
    assert str(agent_parser().parse_args(agent["args"]).state_dir) == DEFAULT.state_dir
    if deployment.flavour == NETWORKING:
        routes = container(documents, ROUTES)
        assert routes["command"] == ["svc-routes"]
        found = parse_routes(routes["args"], {})
        assert (found.mode, found.names, str(found.run_dir)) == ("auto", deployment.profile, DEFAULT.run_dir)
    controllers = container(documents, "controllers")
    assert controllers["command"] == ["svc-controllers"]
    options = controllers_parser().parse_args(controllers["args"])
    assert (options.command, options.names) == ("run", deployment.profile)
    for probe in ("readinessProbe", "livenessProbe"):
        program, *arguments = controllers[probe]["exec"]["command"]
        assert program == "svc-controllers"
        assert controllers_parser().parse_args(arguments).aspect == ("ready" if probe == "readinessProbe" else "live")


@EVERY_DEPLOYMENT
def test_controllers_understand_their_variables(deployment: Settings) -> None:
    env = container(objects(deployment), "controllers")["env"]
    variables = {each["name"]: each["value"] for each in env} | {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    files = {name: variables.pop(name) for name in [*variables] if name.endswith("_FILE") and name != "HEALTH_FILE"}
    found = read_settings(variables, deployment.names, None)
    assert found.datastore["kind"] == (ORCH if deployment.is_orch else "etcdv3")
    assert variables.get("USE_POD_CIDR") == ("true" if deployment.uses_pod_cidrs else None)
    assert found.health_file == "/tmp/health.json"
    assert files == {option.upper(): path for option, path in certificate_paths(deployment).items()}
    assert len(files) == (3 if deployment.etcd_tls else 0)


@EVERY_DEPLOYMENT
def test_accounts_roles_and_bindings_fit(deployment: Settings) -> None:
    """Each binding names a role and an account that exist, each account has a role, and pods have the accounts."""
    documents = objects(deployment)
    accounts = {each["metadata"]["name"] for each in of_kind(documents, "ServiceAccount")}
    roles = {(each["kind"], each["metadata"]["name"]) for each in documents if each["kind"] in ("Role", "ClusterRole")}
    bound, users = set(), set()
    for binding in (each for each in documents if each["kind"].endswith("RoleBinding")):
        bound.add((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        for subject in binding["subjects"]:
            assert subject["namespace"] == deployment.namespace
            users.add(subject["name"])
    assert (bound, users) == (roles, accounts)
    assert {pod["serviceAccountName"] for pod in pods(documents)} <= accounts
    (token,) = (
        rule for each in of_kind(documents, "Role") for rule in each["rules"] if "serviceaccounts/token" in rule["resources"]
    )
    assert token["resourceNames"] == [rbac.plugin_account(deployment.names)]
    assert set(token["resourceNames"]) <= accounts


@EVERY_DEPLOYMENT
def test_pods_have_no_more_than_they_need(deployment: Settings) -> None:
    """Agent and svc-routes alone have capabilities. The token is projected into the programs that use the Kubernetes API."""
    documents = objects(deployment)
    for pod in pods(documents):
        assert pod["automountServiceAccountToken"] is False
        for each in containers(pod):
            context, name = each["securityContext"], each["name"]
            added = {AGENT: ["NET_ADMIN", "SYS_ADMIN", "SYS_NICE"], ROUTES: ["NET_ADMIN"]}.get(name)
            assert context["capabilities"] == {"drop": ["ALL"]} | ({"add": added} if added else {})
            assert context["readOnlyRootFilesystem"] is True
            assert "privileged" not in context
            assert ("token" in [mount["name"] for mount in each["volumeMounts"]]) != (name in (AGENT, ROUTES))
            assert each["image"] == IMAGE


@EVERY_DEPLOYMENT
def test_printed_yaml_has_the_same_objects_without_references(deployment: Settings) -> None:
    documents = objects(deployment)
    text = to_yaml(documents)
    assert list(yaml.safe_load_all(text)) == documents
    assert not re.search(r"[:-] [&*]id\d", text)


@EVERY_DEPLOYMENT
def test_objects_come_in_the_order_in_which_they_need_each_other(deployment: Settings) -> None:
    """A namespace before what is in it, accounts and roles before bindings, all before the pods."""
    kinds = [each["kind"] for each in objects(deployment)]
    order = [
        "Namespace",
        DEFINITION,
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "DaemonSet",
        "Deployment",
    ]
    present = [kind for kind in order if kind in kinds]
    assert [kinds.index(kind) for kind in present] == sorted(kinds.index(kind) for kind in present)
    assert ("Namespace" in kinds) == (deployment.namespace != SYSTEM_NAMESPACE)
    assert (DEFINITION in kinds) == (deployment.is_orch and not deployment.names.foreign_definitions)
    identities = [(each["apiVersion"], describe(each)) for each in objects(deployment)]
    assert len(identities) == len(set(identities))


def test_pod_cidrs_are_used_by_the_flavours_that_route_by_them() -> None:
    for deployment in DEPLOYMENTS:
        documents = objects(deployment)
        for name in (INSTALL, AGENT, "controllers"):
            values = {each["name"]: each.get("value") for each in container(documents, name)["env"]}
            assert values.get("USE_POD_CIDR") == ("true" if deployment.flavour in (OVERLAY, POLICY_ONLY) else None)


@EVERY_DEPLOYMENT
def test_an_apply_empties_no_secret(deployment: Settings) -> None:
    """The administrator makes it. An object without content would take its keys away when it is applied again."""
    assert of_kind(objects(deployment), "Secret") == []


@pytest.mark.parametrize("page", ["README.md", "deploy/README.md", "docs/manifests.md"])
def test_pages_say_that_nothing_enforces_policy_while_the_slot_is_empty(page: str) -> None:
    text = " ".join((Path(__file__).parents[2] / page).read_text().split())
    assert re.search(r"(No|no) component of (svc|the cluster) enforces policy|svc enforces no policy", text)


def test_slots_take_a_policy_agent_and_a_proxy() -> None:
    agent = {"name": "policy", "image": "policy:1"}
    proxy = [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "proxy", "namespace": "kube-system"}}]
    documents = objects(settings(POLICY_ONLY, policy_agent=agent, proxy=proxy))
    assert container(documents, "policy") == agent
    assert documents[-1] == proxy[0]
    assert [each["name"] for pod in pods(objects(settings(POLICY_ONLY))) for each in pod["containers"]] == [
        AGENT, INSTALL_WATCH, "controllers",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "deployment", [settings(*pair) for pair in PAIRS], ids=[f"{flavour}-{datastore}" for flavour, datastore in PAIRS]
)
def test_routes_are_made_where_networking_or_the_user_asks_for_them(deployment: Settings) -> None:
    """With all that svc-routes needs: its role, too, if the Kubernetes API is the datastore."""
    for wanted in (deployment, replace(deployment, routes=True)):
        documents = objects(wanted)
        names = {each["name"] for pod in pods(documents) for each in pod["containers"]}
        runs = wanted.routes or wanted.flavour == NETWORKING
        assert (ROUTES in names) == runs
        roles = {each["metadata"]["name"] for each in of_kind(documents, "ClusterRole")}
        assert (rbac.routes_role(DEFAULT, "")["metadata"]["name"] in roles) == (runs and wanted.is_orch)


def test_disruption_budget_has_the_api_group_of_the_server() -> None:
    for group in ("policy/v1", POLICY_V1BETA1):
        (budget,) = of_kind(objects(settings(NETWORKING, policy_api=group)), "PodDisruptionBudget")
        (deployment,) = of_kind(objects(settings(NETWORKING)), "Deployment")
        assert budget["apiVersion"] == group
        assert budget["spec"]["selector"] == deployment["spec"]["selector"]


def test_update_replaces_the_pod_of_a_node_or_starts_the_new_one_first() -> None:
    """A surge is not the default, because Kubernetes before 1.22 refuses it."""

    def strategy(**more: Any) -> Json:
        (found,) = of_kind(objects(settings(NETWORKING, **more)), "DaemonSet")
        return dict(found["spec"]["updateStrategy"])

    assert strategy() == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    assert strategy(surges=True) == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


@pytest.mark.parametrize(
    ("text", "version"), [("v1.20.5", (1, 20)), ("v1.22.0-rc.1", (1, 22)), ("v1.30.2+k3s1", (1, 30)), ("", None)]
)
def test_version_of_the_server_is_read(text: str, version: tuple[int, int] | None) -> None:
    class Server:
        def get(self, path: str) -> Json:
            assert path == "/version"
            return {"gitVersion": text}

    assert _version(Server()) == version  # type: ignore[arg-type]
    assert _version(None) is None


def test_slots_may_not_have_names_of_svc() -> None:
    """The API server would refuse two containers of one name, after it has stored the objects before."""
    for name in (INSTALL, AGENT, INSTALL_WATCH, ROUTES):
        with pytest.raises(CallerError, match=f"--policy-agent: name = '{name}' is a container of svc"):
            objects(settings(POLICY_ONLY, policy_agent={"name": name, "image": "a:1"}))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"name": 5}, "name = 5 cannot name a container: give up to 63"),
        ({"name": "A_b"}, "name = 'A_b' cannot name a container"),
        ({"image": ["x"]}, "image = ['x'] is not the name of an image: give a text"),
        ({"volumeMounts": "x"}, "volumeMounts is not a list of objects"),
        ({"volumeMounts": [{"name": "nope", "mountPath": "/x"}]}, "volumeMounts has 'nope', which is not a volume"),
    ],
)
def test_policy_agent_that_no_server_would_take_is_refused(given: Json, error: str) -> None:
    volume = {"name": CONFIG_MAP, "mountPath": "/x"}
    good: Json = {"name": "policy", "image": "a:1", "volumeMounts": [volume]}
    assert objects(settings(POLICY_ONLY, policy_agent=good))
    with pytest.raises(CallerError) as caught:
        objects(settings(POLICY_ONLY, policy_agent=good | given))
    assert f"--policy-agent: {error}" in str(caught.value)


def test_pools_are_created_on_request() -> None:
    """With what svc-routes needs to reach other nodes and the outside."""
    pools = of_kind(objects(settings(NETWORKING, pools=("10.244.0.0/16", "fd00::/48"))), "IPPool")
    routed = {"vxlanMode": "CrossSubnet", "natOutgoing": True}
    assert [(pool["metadata"]["name"], pool["spec"]) for pool in pools] == [
        ("default-ipv4-ippool", {"cidr": "10.244.0.0/16", **routed}),
        ("default-ipv6-ippool", {"cidr": "fd00::/48", **routed}),
    ]
    assert of_kind(objects(settings(NETWORKING)), "IPPool") == []


@pytest.mark.parametrize(
    ("flavour", "datastore", "options", "error"),
    [
        (POLICY_ONLY, ETCD, {}, "flavour 'policy-only' is not for etcd"),
        (OPERATOR, ETCD, {}, "flavour 'operator' is not for etcd"),
        (NETWORKING, ORCH, {"etcd_tls": True}, "etcd is configured"),
        (NETWORKING, ETCD, {"etcd_endpoints": "", "etcd_tls": False}, "the addresses of etcd are missing"),
        (NETWORKING, ETCD, {"etcd_endpoints": "foo"}, "--etcd-endpoints 'foo' is not the URL of an etcd server"),
        (NETWORKING, ETCD, {"etcd_endpoints": "http://a:1"}, "--etcd-endpoints 'http://a:1' has no TLS, and --etcd-tls"),
        (NETWORKING, ORCH, {"names": CALICO, "profile": "calico"}, "belong to another product"),
        (NETWORKING, ORCH, {"profile": "/etc/svc/names.toml"}, "is a file of this machine"),
        (NETWORKING, ORCH, {"namespace": "Net"}, "--namespace 'Net'"),
        (NETWORKING, ORCH, {"pools": ("10.0.0.0",)}, "--pool '10.0.0.0'"),
        (NETWORKING, ORCH, {"pools": ("10.0.0.0/30",)}, "--pool '10.0.0.0/30' is smaller than one block of /26"),
        (NETWORKING, ORCH, {"pools": ("127.0.0.0/8",)}, "--pool '127.0.0.0/8' is loopback (127.0.0.0/8)"),
        (NETWORKING, ORCH, {"pools": ("fe80::/64",)}, "--pool 'fe80::/64' is link-local (fe80::/10)"),
        (NETWORKING, ORCH, {"pools": ("10.0.0.0/16", "10.1.0.0/16")}, "--pool 10.0.0.0/16, 10.1.0.0/16 has two pools of one"),
        (OVERLAY, ORCH, {"pools": ("10.0.0.0/16",)}, "pools are given in vain"),
        (OPERATOR, ORCH, {"pools": ("10.0.0.0/16",)}, "pools are given in vain"),
        (NETWORKING, ETCD, {"pools": ("10.0.0.0/16",)}, "pools are given in vain"),
    ],
)
def test_contradictory_settings_are_refused(flavour: str, datastore: str, options: Json, error: str) -> None:
    with pytest.raises(CallerError, match=re.escape(error)) as refusal:
        objects(settings(flavour, datastore, **options))
    assert refusal.value.details


@pytest.mark.parametrize(
    "image", ["", "svc latest", "svc:", "https://registry/svc", "svc@sha256:12", "UPPER/x:1", "a.example/X"]
)
def test_malformed_image_is_refused(image: str) -> None:
    with pytest.raises(CallerError, match="is not the name of an image"):
        objects(Settings(NETWORKING, ORCH, image))


@pytest.mark.parametrize(
    "image", ["a:1", "localhost/a/b_c", "Registry.example:5000/net/svc:V1", "host:5000/a@sha256:" + "0" * 64]
)
def test_names_of_images_are_accepted(image: str) -> None:
    assert objects(Settings(NETWORKING, ORCH, image))


def run(*arguments: str) -> click.testing.Result:
    return CliRunner().invoke(main, ["manifests", *arguments])


def test_command_prints_the_model() -> None:
    result = run("--flavour", "overlay", "--datastore", "etcd", "--etcd-endpoints", "http://a:2379", "--image", "svc:9")
    wanted = objects(Settings(OVERLAY, ETCD, "svc:9", etcd_endpoints="http://a:2379"))
    assert result.exit_code == 0, result.output
    assert list(yaml.safe_load_all(result.output)) == wanted
    listed = json.loads(run("-o", "json", "--names", "calico").output)
    assert listed["kind"] == "List"
    assert {each["kind"] for each in listed["items"]} & {DEFINITION} == set()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--apply",), "--apply needs --kubeconfig"),
        (("--dry-run",), "--dry-run needs --apply"),
        (("--flavour", "none"), "'none' is not one of"),
        (("--datastore", "etcd"), "give --etcd-endpoints"),
        (("--crds", "with-rules", "--policy-api", "policy/v1beta1"), "--crds with-rules needs Kubernetes 1.25, which has no"),
        (("--policy-agent", "/"), "--policy-agent / is a directory: give a file"),
        (("--proxy", "/"), "--proxy / is a directory: give a file"),
    ],
)
def test_command_refuses_what_has_no_effect(arguments: tuple[str, ...], error: str) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert error in result.output


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ("{kind: Service, metadata: {name: a}}", "--proxy: Service a: apiVersion is None: every object needs it"),
        (
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: cni-config, namespace: kube-system}}",
            "--proxy: ConfigMap kube-system/cni-config is an object of svc: give the object another name",
        ),
    ],
)
def test_objects_of_a_proxy_have_names_of_their_own(tmp_path: Path, document: str, error: str) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text(document)
    result = run("--proxy", str(file))
    assert result.exit_code == 1
    assert error in result.output


def test_readiness_probe_tells_a_listening_agent_from_a_socket_that_is_left(tmp_path: Path) -> None:
    """A container that was killed leaves its socket. The probe must not take it for an agent."""
    probe = container(objects(settings(NETWORKING)), AGENT)["readinessProbe"]["exec"]["command"]
    place = f"{DEFAULT.run_dir}/agent.sock"
    path = tmp_path / "agent.sock"
    command = [sys.executable, *(word.replace(place, str(path)) for word in probe[1:])]
    assert (probe[0], place in probe[-1]) == ("python3", True)

    def exit_status() -> int:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode

    assert exit_status() != 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert exit_status() == 0
    assert path.exists()
    assert exit_status() != 0


def test_liveness_probe_fails_only_without_an_agent(tmp_path: Path) -> None:
    """The agent goes on if its datastore is down (exit status 3)."""
    shell, flag, text = container(objects(settings(NETWORKING)), AGENT)["livenessProbe"]["exec"]["command"]
    program = tmp_path / "svcctl"
    for status, wanted in ((0, 0), (3, 0), (4, 1)):
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run([shell, flag, text], env=environment, timeout=60, check=False)
        assert done.returncode == wanted


def test_kind_of_another_datastore_is_not_looked_for() -> None:
    """With etcd the pools have no version in the Kubernetes API: no request is sent, so no client is needed."""
    client: Any = None
    assert Discovery(client).find(settings(NETWORKING, ETCD).store_api_version, "IPPool") is None
