"""Settings of the model, and the names that follow from them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from svc.datastore.etcd.settings import url_errors
from svc.deploy.manifests import pools
from svc.model.errors import CallerError
from svc.model.field_errors import display, without_secrets_in_urls
from svc.names import DEFAULT, Names
from svc.values import dataclass, field

Json = dict[str, Any]
Problem = tuple[str, str]
"""A problem, and its remedy."""

SUBJECT: Final = "the options"
NETWORKING, OVERLAY, POLICY_ONLY, OPERATOR = "networking", "overlay", "policy-only", "operator"
FLAVOURS: Final = (NETWORKING, OVERLAY, POLICY_ONLY, OPERATOR)
ORCH, ETCD = "orch", "etcd"
DATASTORES: Final = (ORCH, ETCD)
WITH_RULES, WITHOUT_RULES, NONE = "with-rules", "without-rules", "none"
CRDS: Final = (WITH_RULES, WITHOUT_RULES, NONE)
POLICY_V1, POLICY_V1BETA1 = "policy/v1", "policy/v1beta1"
POLICY_APIS: Final = (POLICY_V1, POLICY_V1BETA1)
SURGE, REPLACE = "surge", "replace"
UPDATES: Final = (SURGE, REPLACE)

SYSTEM_NAMESPACE: Final = "kube-system"
BIN_DIR, CONF_DIR = "/opt/cni/bin", "/etc/cni/net.d"
CONFIG_MAP, CONFIG_KEY = "cni-config", "config"
"""The ConfigMap with the network list, which the installer reads."""

_HOST: Final = r"((localhost|[\w-]+(\.[\w-]+)+)(:\d+)?|[\w-]+:\d+)"  # of a registry; a word alone is a part of the name
_PART: Final = "[a-z0-9]+([._-]+[a-z0-9]+)*"
IMAGE_PATTERN: Final = rf"({_HOST}/)?{_PART}(/{_PART})*(:\w[\w.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
"""The name of an image, without what only some dialects of regular expressions have."""

_IMAGE: Final = re.compile(IMAGE_PATTERN, re.ASCII)
_NAMESPACE: Final = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE_RULE: Final = "give one such as registry.example/svc:1.0, with a name in lower-case letters"


@dataclass(frozen=True, slots=True)
class Settings:
    """What is chosen for a deployment. `pools` are the ranges of pools to create, if svc manages addresses.

    `policy_agent` is a container that enforces policy, `proxy` are the objects of a data-path proxy. Neither is part of svc.
    """

    flavour: str
    datastore: str
    image: str
    names: Names = DEFAULT
    profile: str = ""  # of the names, as programs in the image find it
    namespace: str = SYSTEM_NAMESPACE
    crds: str = WITHOUT_RULES
    api_version: str = ""  # of the custom resources; empty for the backing group
    policy_api: str = POLICY_V1
    routes: bool = False  # svc-routes runs in this flavour as well
    surges: bool = False  # an update starts the new pod of a node first; needs Kubernetes 1.22
    etcd_endpoints: str = ""
    etcd_tls: bool = False
    pools: Sequence[str] = ()
    policy_agent: Mapping[str, Any] | None = None
    proxy: Sequence[Json] = field(default_factory=list)

    @property
    def is_orch(self) -> bool:
        """Whether the Kubernetes API is the datastore."""
        return self.datastore == ORCH

    @property
    def runs_routes(self) -> bool:
        """Whether nodes have svc-routes. Other flavours are for clusters in which another program routes."""
        return self.routes or self.flavour == NETWORKING

    @property
    def uses_pod_cidrs(self) -> bool:
        """Whether addresses come from the pod CIDRs of nodes."""
        return self.flavour in (OVERLAY, POLICY_ONLY)

    @property
    def store_api_version(self) -> str:
        """The API version of the custom resources; empty if etcd is the datastore."""
        return (self.api_version or self.names.crd_api_version) if self.is_orch else ""

    @property
    def cluster_type(self) -> str:
        """What ClusterInformation says of the cluster."""
        return f"{self.names.orchestrator},overlay" if self.flavour == OVERLAY else self.names.orchestrator

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels by which pods of a workload are found."""
        return {f"app.{self.names.orch_domain}/name": name}


def check(settings: Settings, earlier: Sequence[Problem] = ()) -> None:
    """Raise CallerError with each setting that is malformed or contradicts another one, after the `earlier` problems."""
    found = [*earlier, *_problems(settings)]
    if len(found) == 1:
        raise CallerError(found[0][0], details=found[0][1])
    if found:
        lines = [f"{problem}: {remedy}" for problem, remedy in found]
        error = CallerError(f"{len(found)} errors, {SUBJECT}", details="; ".join(lines))
        error.subject, error.errors = SUBJECT, tuple(lines)
        raise error


def _problems(settings: Settings) -> list[Problem]:
    found = []
    names, is_orch = settings.names, settings.is_orch
    if not is_orch and settings.flavour in (POLICY_ONLY, OPERATOR):
        found.append((f"flavour {settings.flavour!r} is not for etcd", f"give --datastore {ORCH}, or another flavour"))
    if not _IMAGE.fullmatch(settings.image):
        found.append((f"--image {settings.image!r} is not the name of an image", _IMAGE_RULE))
    if not _NAMESPACE.fullmatch(settings.namespace):
        rule = "give up to 63 lower-case letters, digits and '-', a letter or digit first and last"
        found.append((f"--namespace {settings.namespace!r} is not the name of a namespace", rule))
    if "/" in settings.profile:
        rule = "give a shipped profile: the image has no other"
        found.append((f"--names {settings.profile!r} is a file of this machine", rule))
    if is_orch and (settings.etcd_endpoints or settings.etcd_tls):
        found.append(("etcd is configured, and is not the datastore", f"give --datastore {ETCD}, or leave the options out"))
    if not is_orch and not settings.etcd_endpoints:
        found.append(("the addresses of etcd are missing", "give --etcd-endpoints https://HOST:2379,..."))
    if not is_orch:
        found += _endpoint_problems(settings)
    if is_orch and settings.crds != NONE and names.foreign_definitions:
        rule = f"give --crds {NONE}, and apply those of that product: other ones could narrow what it stores"
        found.append(("the definitions with these names belong to another product", rule))
    return [*found, *_pool_problems(settings)]


def _endpoint_problems(settings: Settings) -> list[Problem]:
    if found := url_errors(settings.etcd_endpoints):
        return [(f"--etcd-endpoints {display(each.value)} {each.problem}", each.remedy) for each in found]
    if settings.etcd_tls and not all(url.strip().startswith("https://") for url in settings.etcd_endpoints.split(",")):
        shown = without_secrets_in_urls(settings.etcd_endpoints)
        return [(f"--etcd-endpoints {shown!r} has no TLS, and --etcd-tls is given", "give https://..., or no --etcd-tls")]
    return []


def _pool_problems(settings: Settings) -> list[Problem]:
    if not settings.pools:
        return []
    if not settings.is_orch or settings.uses_pod_cidrs or settings.flavour == OPERATOR:
        source = {OPERATOR: "the Installation has the pools"}.get(settings.flavour, "addresses come from pod CIDRs")
        reason = source if settings.is_orch else "Kubernetes has no pools then: use `svcctl pool apply`"
        return [("pools are given in vain", f"leave --pool out: {reason}")]
    return [*pools.problems(settings.pools)]
