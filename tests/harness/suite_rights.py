"""The proof by audit logs that the roles are right: a run has no denied request of svc, and a request for each right.

The rights of the controllers depend on which of them run: `tests/e2e/test_controllers_rights.py` compares each set of them.
"""

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest

from harness.audit_log import AuditLog, rights_of
from harness.controllers_rights import Right
from harness.kube import NODES
from svc.deploy import rbac
from svc.deploy.manifests.settings import SYSTEM_NAMESPACE
from svc.names import DEFAULT

Json = dict[str, Any]

_PREFIX: Final = "rights-"
_STORE: Final = DEFAULT.crd_api_version
_ROLES: Final = {  # of each program: its user or account, and its roles
    "plugin and agent": (NODES, [rbac.role(DEFAULT, _STORE)]),
    "routes": (rbac.plugin_account(DEFAULT), [rbac.routes_role(DEFAULT, _STORE)]),
    "installer": (
        rbac.node_name(DEFAULT),
        [rbac.installer_token_role(DEFAULT, SYSTEM_NAMESPACE), rbac.installer_role(DEFAULT, _STORE)],
    ),
}


def note(log: Path, basetemp: Path, provoked: Collection[str] = ()) -> None:
    """Note what the log of one server shows. `basetemp` is that of this process, a worker's or that of the whole run.

    Tests have `provoked` the denial of these requests."""
    found = AuditLog(log)
    folder = basetemp.parent if "PYTEST_XDIST_WORKER" in os.environ else basetemp
    used = {program: sorted(found.used(account, granted(program))) for program, (account, _) in _ROLES.items()}
    noted = {"denied": sorted(found.denied().difference(provoked)), "used": used}
    (folder / f"{_PREFIX}{os.getpid()}-{crc32(str(log).encode())}.json").write_text(json.dumps(noted))


def problems(config: pytest.Config, basetemp: Path) -> list[str]:
    """Return the denied requests, and, after a run of all tests, the rights that none has used."""
    noted = _noted(basetemp)
    found = sorted({f"denied: {request}" for each in noted for request in each["denied"]})
    for program in _ROLES if noted and _is_whole(config) else ():
        used = {Right(*right) for each in noted for right in each["used"][program]}
        found += [f"used by no test: {program}: {' '.join(right)}" for right in sorted(granted(program) - used)]
    return found


def is_proof(config: pytest.Config, basetemp: Path) -> bool:
    """Return whether a run without problems proves the roles: all tests have run, with API servers."""
    return _is_whole(config) and bool(_noted(basetemp))


def granted(program: str) -> set[Right]:
    """Return the rights of a program."""
    return {right for role in _ROLES[program][1] for right in rights_of(role)}


def _noted(basetemp: Path) -> list[Json]:
    return [json.loads(file.read_text()) for file in basetemp.glob(f"{_PREFIX}*.json")]


def _is_whole(config: pytest.Config) -> bool:
    """Return whether all tests of the project were asked for, except those that only `make faults` runs."""
    is_chosen = bool(config.getoption("keyword")) or config.getoption("markexpr") not in config.getini("addopts")
    return config.args_source == pytest.Config.ArgsSource.TESTPATHS and not is_chosen
