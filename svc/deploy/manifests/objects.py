"""All objects of a deployment, in the order in which they are applied."""

import json
from typing import Any

from svc.deploy import installation_crd
from svc.deploy.crds import definitions
from svc.deploy.manifests import controllers, network, node, rights
from svc.deploy.manifests.pools import pools_of
from svc.deploy.manifests.settings import NONE, OPERATOR, SYSTEM_NAMESPACE, WITH_RULES, Settings, check
from svc.deploy.manifests.slots import require_slots
from svc.deploy.server_apply import in_order
from svc.model.resource import Resource

Json = dict[str, Any]


def objects(settings: Settings) -> list[Json]:
    """Return the objects. No two of them share a part. Raise CallerError if the settings contradict each other."""
    check(settings)
    found = [
        *_namespace(settings),
        *definitions_of(settings),
        *rights.accounts(settings),
        *rights.roles_and_bindings(settings),
        *([] if settings.flavour == OPERATOR else [network.config_map(settings)]),  # the operator writes it
        *(_pool(pool, settings.store_api_version) for pool in pools_of(settings.pools)),
        node.daemon_set(settings),
        controllers.deployment(settings),
        controllers.disruption_budget(settings),
    ]
    require_slots(settings, (node.INSTALL, node.AGENT, node.INSTALL_WATCH, node.ROUTES), found)
    copied: list[Json] = json.loads(
        json.dumps(in_order([*found, *settings.proxy]))
    )  # YAML would show shared parts as references
    return copied


def definitions_of(settings: Settings) -> list[Json]:
    """Return the definitions of custom resources, if they are wanted; that of the Installation only for the operator."""
    if settings.crds == NONE or not settings.is_orch:
        return []
    found = definitions(settings.names, settings.store_api_version, with_rules=settings.crds == WITH_RULES)
    return [*found, *([installation_crd.definition(settings.names)] if settings.flavour == OPERATOR else [])]


def _namespace(settings: Settings) -> list[Json]:
    if settings.namespace == SYSTEM_NAMESPACE:
        return []
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": settings.namespace}}]


def _pool(pool: Resource, api_version: str) -> Json:
    return {"apiVersion": api_version, "kind": pool.kind, "metadata": pool.metadata, "spec": pool.spec}
