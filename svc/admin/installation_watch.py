"""What `svcctl install --watch` does after the installation.

It keeps the node's access valid, puts removed executables back, notes the version, and registers the node in etcd. All are
repeated until the process ends. The latter two are for pods only: there the node's name in Kubernetes is known, and the account
has the rights.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timezone
from functools import partial
from typing import Final

from svc import __version__
from svc.admin.account_access import Access
from svc.admin.cluster_version import API_TYPE, note_version
from svc.admin.executable_keeper import ExecutableKeeper
from svc.admin.installation import Installation
from svc.admin.node_registration import register
from svc.admin.repeated_task import RepeatedTask, Report
from svc.admin.resources import UNCHANGED
from svc.admin.token_keeper import TokenKeeper
from svc.datastore.open import open_backend
from svc.deploy import rbac

LOOK_SECONDS = 1.0  # between two looks at the files: a few calls of stat(2)
NOTE_SECONDS = 21_600.0  # between two looks at the noted version
NODE_SECONDS = 300.0  # between two looks at the registered node
TYPES_VARIABLE: Final = "CLUSTER_TYPE"
"""The variable with the words for ClusterInformation, separated by commas."""


def keep(wanted: Installation, access: Access, report: Report, is_over: Callable[[], bool]) -> None:
    """Keep access, executables, noted version and registered node as they should be, until `is_over`.

    Report what is done, and each failure once."""
    keeper = TokenKeeper(access, report)
    executables = RepeatedTask(
        ExecutableKeeper(wanted, report).look, report, failed="executables not kept", recovered="the executables are kept again"
    )
    version = RepeatedTask(
        partial(_note, wanted, access, report), report, failed="version not noted", recovered="the version is noted"
    )
    node = RepeatedTask(
        partial(_register, wanted, access, report), report, failed="node not registered", recovered="the node is registered"
    )
    try:
        while not is_over():
            keeper.look()
            executables.run()
            version.run()
            node.run()
            time.sleep(LOOK_SECONDS)
    finally:
        keeper.close()


def _note(wanted: Installation, access: Access, report: Report) -> float:
    """Note version and types of the cluster. Return the seconds until that is repeated."""
    if not access.namespace:
        return math.inf
    settings = store_settings(wanted, access)
    kind, names = settings["kind"], wanted.names
    if kind == "embedded":  # the store of one node
        return math.inf
    types = [word for text in os.environ.get(TYPES_VARIABLE, "").split(",") if (word := text.strip())]
    types += [API_TYPE] if kind == "orch" else []
    remedy = f"grant it: `svcctl manifests` prints the ClusterRole {rbac.installer_name(names)}"
    with closing(open_backend(settings, wanted.state_dir, names, right_remedy=remedy)) as store:
        outcome = note_version(store, names, types, f"v{__version__}", datetime.now(timezone.utc))
    if outcome != UNCHANGED:
        report(f"cluster information {outcome}", False)
    return NOTE_SECONDS


def _register(wanted: Installation, access: Access, report: Report) -> float:
    """Register the node, unless another product's node agent does. Return the seconds until that is repeated."""
    netconf, names = wanted.read_netconf(access.conf_dir)[1], wanted.names
    node, kube_name = netconf.nodename, os.environ.get("KUBERNETES_NODE_NAME", "")
    if netconf.datastore.kind != "etcdv3" or names.foreign_definitions or not (access.namespace and node and kube_name):
        return math.inf
    with closing(open_backend(netconf.datastore.to_json(), wanted.state_dir, names)) as store:
        if register(store, names, node, kube_name, datetime.now(timezone.utc)) != UNCHANGED:
            report(f"node {node} registered", False)
    return NODE_SECONDS


def store_settings(wanted: Installation, access: Access) -> dict[str, str]:
    """Return settings of the network's datastore, with the pod's own access in place of the installed one.

    The pod's account has other rights in the Kubernetes API than the plugin's. Raise CallerError."""
    settings = wanted.read_netconf(access.conf_dir)[1].datastore.to_json()
    folders = [folder for folder in (wanted.conf_dir, wanted.host_conf_dir) if folder]
    if settings.get("kubeconfig") not in {str(folder / access.kubeconfig.name) for folder in folders}:
        return settings
    return {name: text for name, text in settings.items() if name != "kubeconfig"} | access.settings()
