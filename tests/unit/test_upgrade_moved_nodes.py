"""The step that waits for the nodes of a move of the datastore."""

from types import SimpleNamespace
from typing import Any

import pytest

from svc.upgrade import datastore_nodes, stalled_nodes
from svc.upgrade.datastore_nodes import Nodes

REASON = "it is cordoned"
ENDS = {"source": {"kind": "etcdv3"}, "target": {"kind": "orch"}, "wired": []}


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Return the step of a move that has arrived, with a node that has not moved and is cordoned."""
    monkeypatch.setattr(datastore_nodes, "claims_of", lambda *_: {})
    monkeypatch.setattr(stalled_nodes, "GRACE_SECONDS", 0.0)
    known = SimpleNamespace(to_json=lambda: ENDS)
    sites: Any = SimpleNamespace(writer=None, target=None, known=known, has_arrived=True, use=lambda saved: True)
    found = Nodes(sites)
    monkeypatch.setattr(found._stalled, "_read", lambda: {"node2": REASON})
    monkeypatch.setattr(found, "_expected", lambda: {"node2": "node2"})
    return found


def test_consent_to_a_node_that_is_left_out_needs_no_earlier_entry(step: Nodes) -> None:
    """The backup of the run was deleted, after the datastores have changed places."""
    step.look([])
    progress = step.progress()
    assert progress.asks == (f"node node2 has not moved: {REASON}; {datastore_nodes._COST}",)
    assert progress.saves == {"ends": ENDS, "left": {"node2": REASON}}
    look = step.look([progress.saves])
    assert look.notes == (f"node node2 was left out, because {REASON}; {datastore_nodes._COST}",)
    assert step.progress().is_reached
    assert step.unmoved == {"node2"}
