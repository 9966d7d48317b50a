"""The proof of the roles by audit logs: a right that no request uses is found, and so is a denied request."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness import suite_rights
from harness.controllers_rights import Right
from harness.kube import NODES
from svc.deploy import rbac
from svc.deploy.manifests.settings import SYSTEM_NAMESPACE
from svc.names import DEFAULT

Json = dict[str, Any]

USERS = {
    "plugin and agent": NODES,
    "routes": f"system:serviceaccount:{SYSTEM_NAMESPACE}:{rbac.plugin_account(DEFAULT)}",
    "installer": f"system:serviceaccount:{SYSTEM_NAMESPACE}:{rbac.node_name(DEFAULT)}",
}


def event(program: str, right: Right, code: int = 200) -> Json:
    """Return what the log has of a request that needs this right."""
    resource, _, part = right.resource.partition("/")
    about = {"resource": resource, "subresource": part, "apiGroup": right.group, "namespace": right.namespace}
    return {
        "user": {"username": USERS[program]},
        "verb": right.verb,
        "requestURI": f"/{right.resource}",
        "objectRef": {name: value for name, value in about.items() if value},
        "responseStatus": {"code": code},
    }


@pytest.fixture(autouse=True)
def whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_rights, "_is_whole", lambda config: True)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def note(folder: Path, name: str, events: list[Json], *provoked: str) -> None:
    log = folder / name / "audit.log"
    log.parent.mkdir()
    log.write_text("".join(f"{json.dumps(each)}\n" for each in events))
    suite_rights.note(log, folder, provoked)


def every_event() -> list[Json]:
    return [event(program, right) for program in USERS for right in sorted(suite_rights.granted(program))]


def test_each_right_may_be_used_on_another_server(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    events = every_event()
    note(tmp_path, "a", events[::2])
    assert suite_rights.problems(request.config, tmp_path)
    note(tmp_path, "b", events[1::2])
    assert suite_rights.problems(request.config, tmp_path) == []
    assert suite_rights.is_proof(request.config, tmp_path)


@pytest.mark.parametrize("program", USERS)
def test_a_right_that_nothing_uses_is_named(request: pytest.FixtureRequest, tmp_path: Path, program: str) -> None:
    """The same request of another program does not count."""
    unused, *_ = sorted(suite_rights.granted(program))
    others = [event(each, unused) for each in USERS if each != program]
    note(tmp_path, "a", [each for each in every_event() if each != event(program, unused)] + others)
    assert suite_rights.problems(request.config, tmp_path) == [f"used by no test: {program}: {' '.join(unused)}"]


@pytest.mark.parametrize("program", USERS)
def test_a_denied_request_is_named(request: pytest.FixtureRequest, tmp_path: Path, program: str) -> None:
    denied = event(program, Right("", "secrets", "list"), 403)
    note(tmp_path, "a", [*every_event(), denied])
    (problem,) = suite_rights.problems(request.config, tmp_path)
    assert problem == f"denied: {USERS[program].rpartition(':')[2]}: list /secrets"


def test_a_request_that_is_denied_before_or_after_its_role_exists_is_no_problem(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    program, right = next((program, right) for program in USERS for right in sorted(suite_rights.granted(program)))
    early, late = (event(program, right, 403) for _ in range(2))
    late["requestURI"] += "?resourceVersion=7"
    note(tmp_path, "a", [early, *every_event(), late])
    assert suite_rights.problems(request.config, tmp_path) == []


def test_a_request_whose_denial_a_test_has_provoked_is_no_problem(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    denied = event("installer", Right("", "secrets", "list"), 403)
    note(tmp_path, "a", [*every_event(), denied], "svc-node: list /secrets")
    assert suite_rights.problems(request.config, tmp_path) == []


def test_no_server_is_no_proof(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert suite_rights.problems(request.config, tmp_path) == []
    assert not suite_rights.is_proof(request.config, tmp_path)
