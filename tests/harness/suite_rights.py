"""The proof that the role of nodes is right: the audit logs of all API servers of a run show no denied request of a node, and a
request for each right."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.audit_log import AuditLog, rights_of
from harness.controllers_rights import Right
from harness.kube import NODES
from svc.deploy.rbac import role
from svc.names import DEFAULT

Json = dict[str, Any]

_PREFIX = "rights-"


def note(log: Path, basetemp: Path) -> None:
    """Note what the log of one server shows. `basetemp` is that of this process, a worker's or that of the whole run."""
    found = AuditLog(log)
    folder = basetemp.parent if "PYTEST_XDIST_WORKER" in os.environ else basetemp
    denied = sorted(request for request in found.denied() if request.startswith(f"{NODES}: "))  # tests provoke others
    noted = {"denied": denied, "used": sorted(found.used(NODES, _granted()))}
    (folder / f"{_PREFIX}{os.getpid()}-{log.parent.name}.json").write_text(json.dumps(noted))


def problems(config: pytest.Config, basetemp: Path) -> list[str]:
    """Return the denied requests, and, after a run of all tests, the rights that none has used."""
    noted = _noted(basetemp)
    found = sorted({f"denied: {request}" for each in noted for request in each["denied"]})
    if noted and _is_whole(config):
        used = {Right(*right) for each in noted for right in each["used"]}
        found += [f"used by no test: {' '.join(right)}" for right in sorted(_granted() - used)]
    return found


def is_proof(config: pytest.Config, basetemp: Path) -> bool:
    """Return whether a run without problems proves the role: all tests have run, with API servers."""
    return _is_whole(config) and bool(_noted(basetemp))


def _noted(basetemp: Path) -> list[Json]:
    return [json.loads(file.read_text()) for file in basetemp.glob(f"{_PREFIX}*.json")]


def _granted() -> set[Right]:
    return set(rights_of(role(DEFAULT, DEFAULT.crd_api_version)))


def _is_whole(config: pytest.Config) -> bool:
    """Return whether all tests of the project were asked for, except those that only `make faults` runs."""
    is_chosen = bool(config.getoption("keyword")) or config.getoption("markexpr") not in config.getini("addopts")
    return config.args_source == pytest.Config.ArgsSource.TESTPATHS and not is_chosen
