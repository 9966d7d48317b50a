"""Write the folders of `deploy/` that follow from the model: manifests, kustomize, chart, crd-chart, systemd.

usage: python tools/deploy_folders.py [--check] [FOLDER]     --check: write nothing, and fail if a file is stale
"""

import json
import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from svc import __version__
from svc.deploy import installation_crd
from svc.deploy.crds import definitions
from svc.deploy.manifests.node import AGENT, INSTALL, INSTALL_WATCH
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import (
    DATASTORES,
    ETCD,
    FLAVOURS,
    IMAGE_PATTERN,
    NONE,
    OPERATOR,
    ORCH,
    POLICY_ONLY,
    SYSTEM_NAMESPACE,
    Settings,
)
from svc.deploy.manifests.yaml_text import to_yaml
from svc.deploy.systemd import HOST_LOCAL_DIR, render_routes_unit, render_unit
from svc.names import DEFAULT

GENERATED = ("manifests", "kustomize", "chart", "crd-chart", "systemd")
HEAD = "# Written by `make deploy-folders` from the model in svc/deploy/manifests. Do not edit.\n"
IMAGE = f"svc:{__version__}"
PAIRS = [pair for pair in product(FLAVOURS, DATASTORES) if pair not in ((POLICY_ONLY, ETCD), (OPERATOR, ETCD))]
ENDPOINTS = "https://etcd.example:2379"

_NAMESPACE_MARK, _IMAGE_MARK, _ENDPOINTS_MARK = "release-namespace", "chart/image:mark", "https://endpoints.mark:2379"
_AGENT_MARK = "policy-agent-mark"
_URL = r"https?://[^\s,/@]+/?"
_CHART = f"""\
apiVersion: v2
type: application
version: {__version__}
appVersion: {__version__}
"""
_VALUES = f"""\
image: {IMAGE}
flavour: networking  # {", ".join(FLAVOURS)}
datastore: orch  # orch: the Kubernetes API, etcd (with networking and overlay)
etcd:
  endpoints: ""  # URLs, separated by commas
  tls: false  # true: the Secret svc-etcd-secrets has the keys etcd-ca, etcd-cert and etcd-key
policyAgent: null  # a container that enforces policy, which svc does not
proxy: []  # objects of a data-path proxy
"""
_KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n  - objects.yaml\n"


def files() -> Iterator[tuple[str, str]]:
    """Yield the path of each file below the folder, and its text."""
    for flavour, datastore in PAIRS:
        text = HEAD + to_yaml(objects(_settings(flavour, datastore)))
        yield f"manifests/{flavour}-{datastore}.yaml", text
        yield f"kustomize/{flavour}-{datastore}/objects.yaml", text
        yield f"kustomize/{flavour}-{datastore}/kustomization.yaml", HEAD + _KUSTOMIZATION
    for name, with_rules in (("crds", False), ("crds-with-rules", True)):
        yield f"manifests/{name}.yaml", HEAD + _definitions(with_rules=with_rules)
    yield from _chart()
    yield from _crd_chart()
    for program, render, writable in (
        ("agent", render_unit, [Path(DEFAULT.log_dir).parent, HOST_LOCAL_DIR]),
        ("routes", render_routes_unit, []),
    ):
        command = ["/opt/svc/bin/python3", "-I", "-m", f"svc.{program}.main", "run"]
        command += ["--state-dir", DEFAULT.state_dir, "--run-dir", DEFAULT.run_dir]
        name = f"{DEFAULT.plugin}-{program}.service"
        yield f"systemd/{name}", render(name, command, Path(DEFAULT.state_dir), Path(DEFAULT.run_dir), writable)


def _settings(flavour: str, datastore: str) -> Settings:
    return Settings(flavour, datastore, IMAGE, etcd_endpoints=ENDPOINTS if datastore == ETCD else "")


def _definitions(*, with_rules: bool) -> str:
    found = definitions(DEFAULT, DEFAULT.crd_api_version, with_rules=with_rules)
    return to_yaml(json.loads(json.dumps([*found, installation_crd.definition(DEFAULT)])))  # without shared parts


def _chart() -> Iterator[tuple[str, str]]:
    yield "chart/Chart.yaml", f"{HEAD}name: {DEFAULT.plugin}\ndescription: Pod networking and address management\n{_CHART}"
    yield "chart/values.yaml", HEAD + _VALUES
    yield "chart/values.schema.json", _schema(_chart_values())
    yield "chart/templates/checks.yaml", _checks()
    for flavour, datastore in PAIRS:
        for has_tls in (False, True) if datastore == ETCD else (False,):
            suffix = "-tls" if has_tls else ""
            yield f"chart/templates/{flavour}-{datastore}{suffix}.yaml", _template(flavour, datastore, has_tls=has_tls)
    proxy = "{{- range .Values.proxy }}\n---\n{{ toYaml . }}\n{{- end }}\n"
    yield "chart/templates/proxy.yaml", proxy


def _schema(values: dict[str, Any]) -> str:
    """Return a schema that refuses other values than these. Helm adds `global`."""
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "$comment": HEAD.strip("# \n"), "type": "object"}
    known = values["properties"] | {"global": {"type": "object"}}
    return json.dumps(head | values | {"properties": known, "additionalProperties": False}, indent=2) + "\n"


def _chart_values() -> dict[str, Any]:
    """Return the schema of the values. The chart itself refuses combinations of flavour and datastore, in words."""
    text = {"type": "string", "minLength": 1}
    container = {
        "type": ["object", "null"],
        "required": ["name", "image"],
        "properties": {"name": text | {"not": {"enum": [INSTALL, AGENT, INSTALL_WATCH]}}, "image": text},
    }
    named = {"type": "object", "required": ["name"], "properties": {"name": text}}
    document = {
        "type": "object",
        "required": ["apiVersion", "kind", "metadata"],
        "properties": {"apiVersion": text, "kind": text, "metadata": named},
    }
    endpoints = {"type": "string", "pattern": rf"^({_URL}(\s*,\s*{_URL})*)?$"}
    properties = {
        "image": {"type": "string", "pattern": f"^{IMAGE_PATTERN}$"},
        "flavour": {"type": "string"},
        "datastore": {"type": "string"},
        "etcd": _object({"endpoints": endpoints, "tls": {"type": "boolean"}}),
        "policyAgent": container,
        "proxy": {"type": "array", "items": document},
    }
    without_etcd = {"properties": {"etcd": {"properties": {"endpoints": {"const": ""}, "tls": {"const": False}}}}}
    with_tls = {"properties": {"etcd": {"properties": {"endpoints": {"pattern": "^(https://[^,]*,?)*$"}}}}}
    has_tls = {"properties": {"etcd": {"properties": {"tls": {"const": True}}}}}
    rules = [
        {"if": {"properties": {"datastore": {"const": ORCH}}}, "then": without_etcd},
        {"if": has_tls, "then": with_tls},
    ]
    return {"properties": properties, "required": list(properties), "allOf": rules}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _checks() -> str:
    known = " ".join(f'"{flavour}-{datastore}"' for flavour, datastore in PAIRS)
    return (
        '{{- $pair := printf "%s-%s" .Values.flavour .Values.datastore }}\n'
        f"{{{{- if not (has $pair (list {known})) }}}}\n"
        '{{- fail (printf "flavour and datastore %s: give networking or overlay with orch or etcd, or policy-only or operator '
        'with orch" $pair) }}\n'
        "{{- end }}\n"
        f'{{{{- if and (eq .Values.datastore "{ETCD}") (not .Values.etcd.endpoints) }}}}\n'
        '{{- fail "etcd.endpoints is missing: give URLs, separated by commas" }}\n'
        "{{- end }}\n"
        f'{{{{- if and (eq .Values.flavour "{OPERATOR}") (ne .Release.Namespace "{SYSTEM_NAMESPACE}") }}}}\n'
        f'{{{{- fail "flavour {OPERATOR} needs the namespace {SYSTEM_NAMESPACE}: give --namespace {SYSTEM_NAMESPACE}" }}}}\n'
        "{{- end }}\n"
    )


def _template(flavour: str, datastore: str, *, has_tls: bool) -> str:
    """Return the objects of a deployment, with expressions in place of what the values say."""
    is_etcd = datastore == ETCD
    namespace = SYSTEM_NAMESPACE if flavour == OPERATOR else _NAMESPACE_MARK
    settings = Settings(
        flavour, datastore, _IMAGE_MARK, namespace=namespace, crds=NONE, etcd_tls=has_tls,
        etcd_endpoints=_ENDPOINTS_MARK if is_etcd else "", policy_agent={"name": _AGENT_MARK, "image": "mark"},
    )  # fmt: skip
    text = to_yaml([each for each in objects(settings) if each["kind"] != "Namespace"])
    agent = re.compile(rf"^( *)- name: {_AGENT_MARK}\n *image: mark\n", re.MULTILINE)
    slot = "{{- with .Values.policyAgent }}\n{{ toYaml (list .) | indent INDENT }}\n{{- end }}\n"
    text = agent.sub(lambda found: slot.replace("INDENT", str(len(found[1]))), text)
    for mark, expression in (
        (f"image: {_IMAGE_MARK}", "image: {{ .Values.image | quote }}"),
        (f"value: {_ENDPOINTS_MARK}", "value: {{ .Values.etcd.endpoints | quote }}"),
        (_ENDPOINTS_MARK, "{{ .Values.etcd.endpoints }}"),
        (_NAMESPACE_MARK, "{{ .Release.Namespace }}"),
        (
            "apiVersion: policy/v1\n",
            'apiVersion: policy/{{ if .Capabilities.APIVersions.Has "policy/v1" }}v1{{ else }}v1beta1{{ end }}\n',
        ),
    ):
        text = text.replace(mark, expression)
    conditions = [f'(eq .Values.flavour "{flavour}")', f'(eq .Values.datastore "{datastore}")']
    conditions += [".Values.etcd.tls" if has_tls else "(not .Values.etcd.tls)"] if is_etcd else []
    return f"{{{{- if and {' '.join(conditions)} }}}}\n{text}{{{{- end }}}}\n"


def _crd_chart() -> Iterator[tuple[str, str]]:
    description = "description: Resource definitions of svc, apart because helm never upgrades them in a chart's folder crds"
    yield "crd-chart/Chart.yaml", f"{HEAD}name: {DEFAULT.plugin}-crds\n{description}\n{_CHART}"
    yield "crd-chart/values.yaml", f"{HEAD}rules: false  # true: with rules in CEL, for Kubernetes 1.25 or newer\n"
    yield "crd-chart/values.schema.json", _schema({"properties": {"rules": {"type": "boolean"}}, "required": ["rules"]})
    with_rules, without = (_definitions(with_rules=rules) for rules in (True, False))
    text = f"{{{{- if .Values.rules }}}}\n{with_rules}{{{{- else }}}}\n{without}{{{{- end }}}}\n"
    yield "crd-chart/templates/definitions.yaml", text


def main(arguments: list[str]) -> int:
    """Write or check the files. Return the exit status."""
    is_check = "--check" in arguments
    given = [word for word in arguments if word != "--check"]
    folder = Path(given[0]) if given else Path(__file__).parents[1] / "deploy"
    wanted = dict(files())
    present = {str(path.relative_to(folder)) for name in GENERATED for path in (folder / name).rglob("*") if path.is_file()}
    stale = [name for name, text in wanted.items() if name not in present or (folder / name).read_text() != text]
    surplus = sorted(present - wanted.keys())
    if is_check:
        for name in (*stale, *surplus):
            print(f"stale: {folder / name}: run `make deploy-folders`")
        return 1 if stale or surplus else 0
    for name in stale:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(wanted[name])
    for name in surplus:
        (folder / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
