"""Rule R9: what an Installation with host-local sets in a cluster."""

from pathlib import Path

import pytest

from harness.datastores import Site
from harness.installations import FOUR, V4, document, host_local, installed_cluster
from harness.kube import Kube
from harness.spec_rows import statement

pytestmark = pytest.mark.server

ON_ORCH = pytest.mark.parametrize("site", ["orch"], indirect=True, scope="module")


@ON_ORCH
@statement(
    "4",
    "R9",
    "With host-local and the Kubernetes API the node agent and the proxy have `USE_POD_CIDR` set to `true`.",
    "`svcctl installation apply`, or the controller `operator`, sets it on both where they exist, and on the DaemonSet and the"
    " controllers of svc, when the Installation asks for `HostLocal`. It removes it when the Installation no longer does.",
    choice="It writes this variable alone, as a field manager of its own, and never replaces another value of the node agent or"
    " the proxy: it reports that. The variable has no effect on an ADD, which reads the range from the node.",
)
def test_host_local_sets_the_variable_and_removes_it(site: Site, kube: Kube, tmp_path: Path) -> None:
    with installed_cluster(kube, site, tmp_path) as cluster:
        cluster.make(*FOUR)
        cluster.call("apply", host_local({"ipPools": [V4]}))
        assert {each: cluster.environment(each).get("USE_POD_CIDR") for each in FOUR} == dict.fromkeys(FOUR, "true")
        cluster.call("apply", document({"ipPools": [V4]}))
        assert {each: cluster.environment(each).get("USE_POD_CIDR") for each in FOUR} == dict.fromkeys(FOUR)
