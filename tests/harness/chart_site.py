"""A cluster with a release of helm, and charts of a newer one, for tests of upgrades. helm and charts are real."""

import base64
import gzip
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from harness.etcd import RARE_COLLECTIONS
from harness.kube import CACHE, Kube
from harness.skips import NO_HELM
from harness.upgrade_site import SYSTEM, UpgradeSite
from svc.deploy.crds import definitions
from svc.deploy.installation_crd import definition
from svc.names import DEFAULT

Json = dict[str, Any]

HELM = CACHE.parent / "helm" / "helm"
CHARTS = Path(__file__).parents[2] / "deploy"
RELEASE = "pods"
FORMER, OWN = "default", SYSTEM
INSTALLATION = "/apis/operator.svc.internal/v1/installations/default"
POLICY = "/apis/policy/v1beta1/podsecuritypolicies/svc-controllers"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/svc-controllers"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/svc-controllers"
INFORMATION = "/apis/crd.svc.internal/v1/clusterinformations"
NAMESPACE_MARK = "meta.helm.sh/release-namespace"
_ANY = {"rule": "RunAsAny"}


def needed() -> list[Json]:
    """Return the definitions that releases of tests need."""
    kinds = definitions(DEFAULT, DEFAULT.crd_api_version)
    return [definition(DEFAULT), *(each for each in kinds if each["spec"]["names"]["kind"] == "ClusterInformation")]


def of_old_layout() -> list[Json]:
    """Return the objects of a chart of the old layout: its release is in another namespace than they are."""
    labels = {"app.kubernetes.io/name": "svc-controllers"}
    head = {"name": "svc-controllers", "namespace": SYSTEM}
    container = {"name": "controllers", "image": "{{ .Values.image }}"}
    template = {"metadata": {"labels": labels}, "spec": {"serviceAccountName": "svc-controllers", "containers": [container]}}
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "svc-controllers"}
    subject = {"kind": "ServiceAccount", **head}
    policy = {"seLinux": _ANY, "supplementalGroups": _ANY, "runAsUser": _ANY, "fsGroup": _ANY}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "svc-controllers"}, "rules": []},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "svc-controllers"},
            "roleRef": role,
            "subjects": [subject],
        },
        {"apiVersion": "policy/v1beta1", "kind": "PodSecurityPolicy", "metadata": {"name": "svc-controllers"}, "spec": policy},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": head,
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": DEFAULT.operator_api_version,
            "kind": "Installation",
            "metadata": {"name": "default"},
            "spec": {"svcNetwork": {"ipPools": []}},
        },
    ]


class ChartSite(UpgradeSite):
    """The cluster. `chart` is the one to go to, with the values of `values`."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        super().__init__(kube, folder)
        self.chart = self.copy_chart("0.1.1")
        self.values: Path | None = self.write_values(image="svc:0.1.1", flavour="operator")
        self.helm = str(HELM)
        self.definitions = needed()

    def copy_chart(self, version: str) -> Path:
        """Copy the chart of svc as another release of it."""
        target = self.folder / f"chart-{version}"
        shutil.copytree(CHARTS / "chart", target)
        file = target / "Chart.yaml"
        file.write_text(file.read_text().replace("ersion: 0.1.0", f"ersion: {version}"))
        return target

    def write_old_chart(self) -> Path:
        """Write a chart of the old layout."""
        target = self.folder / "old-chart"
        if not target.exists():
            (target / "templates").mkdir(parents=True)
            about = {"apiVersion": "v2", "name": "svc", "version": "0.1.0", "appVersion": "0.1.0"}
            (target / "Chart.yaml").write_text(yaml.safe_dump(about))
            text = "\n---\n".join(yaml.safe_dump(each) for each in of_old_layout())
            (target / "templates" / "all.yaml").write_text(text)
        return target

    def write_values(self, **values: str) -> Path:
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    def run_helm(self, *words: str) -> str:
        """Run helm as a user does."""
        command = [str(HELM), *words, "--kubeconfig", str(self.kubeconfig)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def install_old_layout(self) -> None:
        """Install the former release in the namespace of the old layout."""
        self.run_helm("install", RELEASE, str(self.write_old_chart()), "-n", FORMER, "--set", "image=svc:0.1.0")

    def install_own(self) -> None:
        """Install the former release in its own namespace."""
        chart = ("-n", OWN, "--set", "image=svc:0.1.0", "--set", "flavour=operator")
        self.run_helm("install", RELEASE, str(CHARTS / "chart"), *chart)

    def chart_words(self, verb: str, *arguments: str, server: str = "", release: str = RELEASE) -> list[str]:
        words = [*self.words(verb, *arguments, documents=self.definitions, server=server), "--helm", self.helm]
        if verb == "undo":
            return words
        values = [] if self.values is None else ["--values", str(self.values)]
        return [*words, "--procedure", "chart", "--chart", str(self.chart), "--release", release, *values]

    def upgrade(self, verb: str, *arguments: str, server: str = "", release: str = RELEASE) -> Result:
        """Run svcctl in this process."""
        return self.call(*self.chart_words(verb, *arguments, server=server, release=release))

    def upgrades(self, verb: str, *arguments: str) -> str:
        """Run svcctl, which must end well."""
        done = self.upgrade(verb, *arguments)
        assert done.exit_code == 0, done.output
        return done.output

    def releases(self) -> dict[str, str]:
        """Return the status of each revision, by namespace and name of its Secret."""
        found = {}
        for secret in self.secrets():
            status = self.payload(secret)["info"]["status"]
            found[f"{secret['metadata']['namespace']}/{secret['metadata']['name'].rpartition('.')[2]}"] = status
        return found

    def secrets(self) -> list[Json]:
        found: list[Json] = self.kube.call("GET", "/api/v1/secrets?fieldSelector=type%3Dhelm.sh/release.v1")["items"]
        return found

    @staticmethod
    def payload(secret: Json) -> Json:
        found: Json = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))))
        return found

    def owners(self) -> dict[str, str]:
        """Return the namespace of the release to which objects belong."""
        found = {}
        for path in (INSTALLATION, POLICY, DEPLOYMENT, ROLE):
            if live := self.get(path):
                found[path.rpartition("/")[0].rpartition("/")[2]] = live["metadata"]["annotations"][NAMESPACE_MARK]
        return found

    def generations(self) -> dict[str, Any]:
        """Return what a run without anything to do must not change."""
        paths = (INSTALLATION, POLICY, DEPLOYMENT, ROLE, f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/svc-node")
        live = {path: self.get(path) for path in paths}
        found: dict[str, Any] = {path: each and each["metadata"].get("generation") for path, each in live.items()}
        return found | {"releases": self.releases(), "rest": self.everything()}

    def substance(self) -> Json:
        """Return what objects of the release say, and of which release they are."""
        paths = (INSTALLATION, POLICY, DEPLOYMENT, ROLE, f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/svc-node")
        found: Json = {}
        for path in paths:
            live = self.get(path)
            mark = live and (live["metadata"].get("annotations") or {}).get(NAMESPACE_MARK)
            found[path] = live and {"spec": live.get("spec"), "rules": live.get("rules"), "mark": mark}
        return found

    def reset(self) -> None:
        """Delete everything but the definitions."""
        self.clear()
        self.kube.forget(f"secrets/{SYSTEM}/sh.", f"secrets/{FORMER}/", "podsecuritypolicy/", "operator.svc.internal/")
        self.kube.forget(f"serviceaccounts/{SYSTEM}/svc-", "crd.svc.internal/", "leases/kube-system/svc-")
        body = {"apiVersion": "crd.svc.internal/v1", "kind": "ClusterInformation", "metadata": {"name": "default"}}
        self.kube.call("POST", INFORMATION, body | {"spec": {"svcVersion": "0.1.0", "datastoreReady": True}})


def running_chart_site(kube: Kube, folder: Path) -> Iterator[ChartSite]:
    """Yield a cluster without a release. Skip the test if helm is missing."""
    if not HELM.exists():
        pytest.skip(NO_HELM)
    site = ChartSite(kube, folder)
    kube.apply(needed())
    site.reset()
    try:
        with pytest.MonkeyPatch.context() as environment:
            for name, text in RARE_COLLECTIONS.items():  # of helm, which runs twice in each upgrade
                environment.setenv(name, text)
            yield site
    finally:
        site.reset()
