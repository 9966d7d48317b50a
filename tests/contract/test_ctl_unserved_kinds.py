"""svcctl and a Kubernetes API that does not serve kinds of other programs: the errors name what defines them."""

from pathlib import Path

import pytest

from harness.datastores import OrchSite
from harness.documents import GLOBAL_POLICY, INSTALLATION, POLICY, text
from harness.svcctl import cli_on

pytestmark = pytest.mark.server


def test_api_without_a_policy_agent_is_named(orch_site: OrchSite, tmp_path: Path) -> None:
    """It serves no policies of these names. The error says which program defines them."""
    cli = cli_on(orch_site, tmp_path / "node")
    for command in (("get", "np"), ("get", "gnp", "open"), ("delete", "gnp", "open")):
        error = cli.fails(*command)
        assert "the datastore has no" in error
        assert "install the policy agent, which defines this kind" in error
    for each in (POLICY, GLOBAL_POLICY):
        assert "install the policy agent" in cli.fails("apply", "-f", "-", stdin=text(each))


def test_missing_definition_is_named(orch_site: OrchSite, tmp_path: Path) -> None:
    cli = cli_on(orch_site, tmp_path / "node")
    for command in (("get", "installations"), ("apply", "-f", "-")):
        error = cli.fails(*command, stdin=text(INSTALLATION))
        assert "make its definition: `svcctl crd apply --group operator`" in error
