"""Names of the deployment occur only in their record, and the reference lists each with both values."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import load_profile

ROOT = Path(__file__).parents[2]
NAME = re.compile(
    r"svc\.internal|projectcalico|tigera|\bcali|/(lib|run|log)/(svc|calico)|k8s|kubernetes|^/?svc(-ipam|-controllers|-operator|-node|-node-agent|-data-path-proxy)?$|svc\.conf"
)

# Where such a word is not a name of a deployment.
ACCESS = {
    "k8s_auth_token",
    "k8s_client_certificate",
    "k8s_client_key",
    "k8s_certificate_authority",
}  # of the section policy of a network configuration
FIELDS = {f"policy.{name}" for name in ACCESS}
ALLOWED = {
    "svc/__init__.py": {"svc-cni"},  # the distribution's name
    "svc/netconf/fields.py": {  # words of the specification and of Kubernetes, read under every profile
        "kubernetes", "k8s", "kubernetes.kubeconfig", "orch.k8s_api_root", "kubernetes.orch_api_root",
        "kubernetes.k8s_api_root", "kubernetes.node_name", "policy.k8s_api_root", *FIELDS,
    },
    "svc/netconf/netconf.py": FIELDS,
    "svc/attach/token_cache.py": {"k8s_auth_token"},
    "svc/netconf/cross_checks.py": {"policy.k8s_client_certificate", "policy.k8s_client_key"},
    "svc/datastore/open.py": {"kubernetes"},  # a package
    "svc/datastore/orch/client.py": {"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"},
    "svc/deploy/crds.py": {"apiextensions.k8s.io/v1", "x-kubernetes-preserve-unknown-fields"},  # of the Kubernetes API
    "svc/deploy/crd_rules.py": {"x-kubernetes-validations"},
    "svc/deploy/installation_crd.py": {"apiextensions.k8s.io/v1", "x-kubernetes-preserve-unknown-fields"},
    "svc/deploy/rbac.py": {"rbac.authorization.k8s.io"},
    "svc/deploy/controller_rights.py": {"coordination.k8s.io", "networking.k8s.io"},
    "svc/deploy/manifests/controllers.py": {"svc-controllers"},  # the program
    "svc/model/installation.py": {"kubernetesProvider"},  # a field
    "svc/model/keys.py": {"stagedkubernetesnetworkpolicies"},  # objects of another program
    "svc/datastore/orch/leases.py": {"coordination.k8s.io/v1"},
    "svc/controllers/main.py": {"svc-controllers"},  # the program
    "svc/controllers/copies/network_policies.py": {"/apis/networking.k8s.io/v1"},
    "svc/admin/convert_netconf.py": {"calico", "kubernetes", "k8s_api_root"},  # profile, sections, fields
    "svc/admin/convert_operator.py": {"kubernetes"},
    "svc/admin/account_access.py": {"k8s_auth_token", "k8s_certificate_authority"},
    "svc/admin/account_token.py": {"authentication.k8s.io/v1"},
    "svc/admin/diagnostics.py": {"svc"},  # a field of the document
    "svc/ctl/commands/convert.py": {"calico", "default|calico|FILE"},  # a profile of svc
    "svc/model/pod_endpoint.py": {"k8s.v1.cni.cncf.io/network-status"},  # of another program
    "svc/datastore/orch/auth.py": {"/var/run/secrets/kubernetes.io/serviceaccount", *ACCESS},  # the path in every pod
}  # fmt: skip
PLAIN = {
    "operator_namespace",
    "operator_status",
    "installation_version",
    "orch_section",
    "orch_api_root",
    "orch_policy",
    "orch_datastore",
    "network",
    "version_field",
    "namespace_profile",
    "service_account_profile",
    "namespace_label",
    "service_account_label",
    "default_allow_profile",
    "node_address",
    "environment_prefix",
    "operator_network",
    "operator_plugin",
    "manage_cni",
    "cni_installer",
    "vxlan_device",
    "vxlan6_device",
    "ipip_device",
    "nat_table",
    "upgrade_floor",
    "upgrade_target",
    "mesh_namespace",
    "mesh_injector",
    "sidecar",
}


def texts(source: Path) -> Iterator[str]:
    """Yield the string literals, parts of f-strings included, except docstrings."""
    tree = ast.parse(source.read_text())
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def test_names_occur_nowhere_else() -> None:
    """A name in another module breaks every other profile."""
    sources = [path for path in (ROOT / "svc").rglob("*.py") if path.parent.name != "names"]
    found = {(str(path.relative_to(ROOT)), text) for path in sources for text in texts(path) if NAME.search(text)}
    assert found - {(path, text) for path, allowed in ALLOWED.items() for text in allowed} == set()


def test_exceptions_are_still_necessary() -> None:
    """An unused exception would hide the next mistake."""
    for path, allowed in ALLOWED.items():
        assert allowed <= set(texts(ROOT / path)), path


@pytest.mark.parametrize("name", [field.name for field in fields(Names)])
def test_pattern_matches_every_name(name: str) -> None:
    """The pattern must match all names of svc that are not plain words."""
    value = getattr(DEFAULT, name)
    if isinstance(value, str) and name not in PLAIN:
        assert NAME.search(value), value


def row(text: str, name: str) -> list[str]:
    (found,) = re.findall(rf"^\| `{name}` \| (.*) \|$", text, re.MULTILINE)
    return re.split(r" \| ", found)


def shown(value: object) -> str:
    if isinstance(value, bool):
        return f"`{value}`".lower()
    return ", ".join(f"`{item}`" for item in (value if isinstance(value, tuple) else (value,)))


@pytest.mark.parametrize("name", [field.name for field in fields(Names)])
def test_reference_lists_every_name(name: str) -> None:
    """It has the purpose of the name, and its value in each shipped profile."""
    text = (ROOT / "docs" / "reference" / "names.md").read_text()
    meaning, default, calico = row(text, name)
    assert len(meaning) > 10
    assert (default, calico) == (shown(getattr(DEFAULT, name)), shown(getattr(load_profile("calico"), name)))
