"""Which nodes are gone, with a clock that the test moves."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from svc.controllers.gone_nodes import QUIET_SECONDS, GoneNodes
from svc.datastore.api import Create, Delete, Update
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.orch.client import ApiError
from svc.model.claim import Claimant, NodeClaim
from svc.model.errors import PeerError
from svc.model.keys import NodeClaimKey, ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT

NODE = "node1"
CLAIM = NodeClaimKey(NODE)


class Api:
    """The nodes of Kubernetes, as a client reads them."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.failure: ApiError | None = None
        self.asked: list[str] = []

    def get(self, path: str) -> Any:
        name = path.removeprefix("/api/v1/nodes/")
        self.asked.append(name)
        if self.failure is not None:
            raise self.failure
        if name not in self.nodes:
            raise ApiError(404, "NotFound", f"{name} not found", call=f"GET {path}")
        return {}


class Case:
    """A judge with everything that it reads."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.now = 5.0
        self.api = Api()
        self.store = store
        self.judge = GoneNodes(self.api, store, DEFAULT, lambda: self.now)  # type: ignore[arg-type]

    def is_gone(self, after: float = 0.0) -> bool:
        self.now += after
        return self.judge.is_gone(NODE)

    def claim(self) -> None:
        """Claim the name, or move its claim."""
        entry = self.store.find(CLAIM)
        value = NodeClaim(Claimant("m", "b", "/s"))
        self.store.write([Create(CLAIM, value) if entry is None else Update(CLAIM, entry.value.renewed(), entry.revision)])

    def register(self, **spec: Any) -> None:
        self.store.write([Create(ResourceKey("Node", NODE), Resource("Node", {"name": NODE}, spec))])


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with closing(EmbeddedStore(tmp_path / "store.db")) as store:
        yield Case(store)


@pytest.mark.parametrize("is_claimed", [True, False])
def test_missing_node_is_gone_once_its_claim_has_not_moved(case: Case, is_claimed: bool) -> None:
    """Nodes without an agent of svc have no claim."""
    if is_claimed:
        case.claim()
    assert [case.is_gone(), case.is_gone(QUIET_SECONDS - 1), case.is_gone(1)] == [False, False, True]
    assert case.is_gone()


def test_present_node_is_not_gone(case: Case) -> None:
    case.api.nodes.add(NODE)
    assert [case.is_gone(), case.is_gone(QUIET_SECONDS * 2)] == [False, False]


def test_moved_claim_begins_the_observation_again(case: Case) -> None:
    case.claim()
    case.is_gone()
    case.claim()
    assert [case.is_gone(QUIET_SECONDS), case.is_gone(QUIET_SECONDS - 1), case.is_gone(1)] == [False, False, True]


def test_claim_that_appears_or_disappears_has_moved(case: Case) -> None:
    case.is_gone()
    case.claim()
    assert not case.is_gone(QUIET_SECONDS)
    case.store.write([Delete(CLAIM)])
    assert not case.is_gone(QUIET_SECONDS)
    assert case.is_gone(QUIET_SECONDS)


def test_node_that_was_created_again_is_observed_anew(case: Case) -> None:
    case.is_gone()
    case.api.nodes.add(NODE)
    assert not case.is_gone(QUIET_SECONDS)
    case.api.nodes.clear()
    assert [case.is_gone(), case.is_gone(QUIET_SECONDS)] == [False, True]


def test_node_that_is_not_kept_is_observed_anew(case: Case) -> None:
    case.is_gone()
    case.judge.keep([NODE])
    assert case.is_gone(QUIET_SECONDS)
    case.judge.keep(["other"])
    assert not case.is_gone(QUIET_SECONDS)


def test_node_that_was_seen_in_kubernetes_is_observed_anew(case: Case) -> None:
    """It may have been there between two questions. Its name there counts."""
    case.register(orchRefs=[{"orchestrator": "k8s", "nodeName": "worker-1"}])
    case.is_gone()
    case.judge.note_present([NODE])
    assert case.is_gone(QUIET_SECONDS)
    case.judge.note_present(["worker-1"])
    assert [case.is_gone(QUIET_SECONDS), case.is_gone(QUIET_SECONDS)] == [False, True]


def test_claim_that_this_process_has_deleted_is_no_sign_of_life(case: Case) -> None:
    case.claim()
    case.is_gone()
    case.now += QUIET_SECONDS
    claim = case.judge.claim_if_gone(NODE)
    assert claim
    case.store.write([Delete(CLAIM)])
    case.judge.note_deleted_claim(NODE, claim)
    assert case.judge.claim_if_gone(NODE) == ""


def test_claim_that_moved_after_the_judgement_is_not_noted_as_deleted(case: Case) -> None:
    """Another part has asked in the meantime."""
    case.claim()
    case.is_gone()
    case.now += QUIET_SECONDS
    claim = case.judge.claim_if_gone(NODE)
    assert claim
    case.claim()
    case.is_gone()
    case.judge.note_deleted_claim(NODE, claim)
    assert [case.is_gone(QUIET_SECONDS - 1), case.is_gone(1)] == [False, True]


def test_node_has_the_name_of_its_reference(case: Case) -> None:
    case.register(orchRefs=[{"orchestrator": "k8s", "nodeName": "worker-1"}])
    case.api.nodes.add("worker-1")
    assert [case.is_gone(), case.is_gone(QUIET_SECONDS)] == [False, False]
    case.api.nodes = {NODE}
    assert [case.is_gone(), case.is_gone(QUIET_SECONDS)] == [False, True]
    assert set(case.api.asked) == {"worker-1"}


def test_node_that_is_none_of_kubernetes_is_never_gone(case: Case) -> None:
    case.register(orchRefs=[{"orchestrator": "other", "nodeName": "x"}])
    assert [case.is_gone(), case.is_gone(QUIET_SECONDS)] == [False, False]
    assert case.api.asked == []


def test_malformed_node_is_named_with_the_remedy(case: Case) -> None:
    case.register(orchRefs=["x"])
    with pytest.raises(PeerError, match=r"Node 'node1' cannot be judged: .*orchRefs.*svcctl node apply"):
        case.is_gone()


@pytest.mark.parametrize("failure", [(404, ""), (403, "Forbidden"), (500, "")])
def test_answer_that_is_not_about_the_node_proves_nothing(case: Case, failure: tuple[int, str]) -> None:
    """A proxy, or an API server that does not serve nodes yet, may answer 404 as well."""
    case.is_gone()
    case.api.failure = ApiError(failure[0], failure[1], "x", call="GET x")
    with pytest.raises(ApiError):
        case.is_gone(QUIET_SECONDS)
    case.api.failure = None
    assert case.is_gone()


def test_claim_that_cannot_be_read_proves_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may not have been able to renew it in this time either, so that the observation begins again."""
    case.claim()
    assert not case.is_gone()
    with monkeypatch.context() as patched:
        patched.setattr(case.store, "find", _refuse)
        with pytest.raises(ApiError):
            case.is_gone(QUIET_SECONDS)
    assert [case.is_gone(1), case.is_gone(QUIET_SECONDS - 1), case.is_gone(1)] == [False, False, True]


def _refuse(*_: object) -> None:
    raise ApiError(403, "Forbidden", "no right", call="GET leases")
