"""Checks around every test: its requirements, and that it leaves nothing behind."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from harness import room, second_run, suite_rights
from harness.kube import Kube, running
from harness.leaks import Footprint, adopt_orphans, require_nothing_since
from harness.skips import unexpected
from svc._core import netns

API_SERVERS = 3  # of a test run on several workers


_passed_alone = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    second_run.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    is_whole = config.getoption(second_run.OPTION) and "PYTEST_XDIST_WORKER" not in os.environ
    if is_whole and (reason := room.why_too_small(Path(tempfile.gettempdir()))):
        raise pytest.UsageError(reason)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets the programs that it runs beside ignore it
    # On a busy machine the first random text takes seconds, which is not a fault of the tested code.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in its own hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each item its group. One worker runs the tests of a group, which share fixtures with a slow setup.

    Groups with slow tests begin first, so that no worker is left with one of them at the end.
    """
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    slow = {group for item, group in groups.items() if item.get_closest_marker("slow")}
    items.sort(key=lambda item: groups[item] not in slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude the modules and items, which live until the end, from garbage collection: a full one would take half a second.

    The search for leaks collects all garbage whenever it finds one, so other collections may be rare.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


def _group(item: pytest.Item) -> str:
    """Return the group: the file, or the datastore of a contract test, or the real node, or the nodes with the image.

    Tests on an API server have few groups, because each worker with such tests runs a server, which takes processor time even
    while no test uses it.
    """
    path = str(item.path.relative_to(item.config.rootpath))
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if item.path.parent.name == "node":
        return "node"
    if item.path.parent.name in ("fresh", "image"):  # whole clusters: several at a time need more than two processors
        return "image"
    if "kube" in getattr(item, "fixturenames", ()) or any(str(value).startswith("orch") for value in params.values()):
        return f"api-{crc32(path.encode()) % API_SERVERS}"
    return str(params.get("datastore", path))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and (reason := why_not_root()):
        pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in unexpected(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(f"skipped, and not expected to be: {line}", red=True)
    for name in terminalreporter.config.stash.get(_passed_alone, []):
        terminalreporter.write_line(f"failed beside other tests, and passed alone in a second run: {name}", yellow=True)
    for line in (wrong := _wrong_rights(terminalreporter.config)):
        terminalreporter.write_line(f"rights: {line}", red=True)
    if not wrong and suite_rights.is_proof(terminalreporter.config, _basetemp(terminalreporter.config)):
        terminalreporter.write_line(
            "rights: the audit logs show no denied request of plugin, agent, routes and installer, and a request for each right"
        )


@pytest.hookimpl(trylast=True)  # after the workers have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    coverage = sys.modules.get("coverage")
    if coverage is not None and (measured := coverage.Coverage.current()) is not None:
        measured.save()  # xdist kills a worker that needs more than some seconds to end
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    if unexpected(reporter.stats.get("skipped", [])) or _wrong_rights(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    elif session.exitstatus == pytest.ExitCode.TESTS_FAILED and session.config.getoption(second_run.OPTION):
        failed = second_run.failed_tests(reporter)
        if 0 < len(failed) <= second_run.MOST and second_run.passes(failed, _basetemp(session.config)):
            session.config.stash[_passed_alone] = failed
            session.exitstatus = pytest.ExitCode.OK


def _wrong_rights(config: pytest.Config) -> list[str]:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return []
    return suite_rights.problems(config, _basetemp(config))


def _basetemp(config: pytest.Config) -> Path:
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.getbasetemp()


def why_not_root() -> str:
    """Return why this process cannot make network namespaces, or an empty text if it can."""
    if os.geteuid() != 0:
        return "needs root: it makes network namespaces"
    try:
        netns.self_check()
    except OSError as refusal:
        return f"needs CAP_SYS_ADMIN to enter network namespaces: {refusal}"
    return ""


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test that leaves a namespace, link of the host, process, mount, thread or descriptor."""
    before = Footprint.take(tmp_path_factory.getbasetemp())
    yield
    require_nothing_since(before)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_at_the_end(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Check the same for fixtures that outlive a test."""
    before = Footprint.take(tmp_path_factory.getbasetemp())
    yield
    require_nothing_since(before)


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """Start one API server for all tests of a run. Skip the test without its programs. A test that writes to it cleans up."""
    with running(tmp_path_factory.mktemp("kube"), audits=True) as server:
        yield server
        suite_rights.note(server.audit_log, tmp_path_factory.getbasetemp(), server.provoked)
