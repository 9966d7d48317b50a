"""svcctl ipam check on a large cluster: time and peak memory of the process, with the Kubernetes API as the datastore."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.measurement import Figure, Missing, Sample, at_most
from bench.options import VERSIONS, Options
from harness.kube import Kube, running
from harness.large_cluster import LargeCluster
from harness.node import netconf
from harness.orch import install, open_store

Json = dict[str, Any]

PODS_OF_NODE = 30


class Cost(NamedTuple):
    """Seconds of a process, its processor time, and its peak memory."""

    seconds: float
    processor_seconds: float
    mib: float


def run(options: Options) -> Iterator[Figure]:
    nodes = 1000 if options.memory_pods >= 500 else 100
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            kube = stack.enter_context(running(folder))
        except pytest.skip.Exception as what:
            raise Missing(str(what)) from None
        install(kube)
        with closing(open_store(kube, folder)) as store:
            made = LargeCluster(nodes, PODS_OF_NODE)
            made.fill_api(kube)
            made.fill_custom_resources(kube, store)
        yield from _measure(kube, folder, nodes)


def _measure(kube: Kube, folder: Path, nodes: int) -> Iterator[Figure]:
    cost, summary = _check(kube, folder)
    number = nodes * PODS_OF_NODE
    note = f"{summary['allocations']} addresses of {nodes} nodes, {summary['inUse']} in use, {summary['findings']} findings"
    note += f"; {cost.processor_seconds:.1f} s of processor time"
    is_whole = nodes >= 1000
    yield Figure(
        "ipam_check", "s", Sample(cost.seconds), number, goal=at_most(30) if is_whole else None, note=note, versions=VERSIONS
    )
    yield Figure("ipam_check_peak", "MiB", Sample(cost.mib), number, goal=at_most(250) if is_whole else None, note=note)


_MEASURED = """
import os, subprocess, sys, time
started = time.monotonic()
_, status, usage = os.wait4(subprocess.Popen(sys.argv[1:], stdout=sys.stderr).pid, 0)
print(os.waitstatus_to_exitcode(status), time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""  # a process of its own: the peak of a child includes what its parent had at the fork


def _check(kube: Kube, folder: Path) -> tuple[Cost, Json]:
    """Run the check in a process of its own. Return its cost, and its summary."""
    file = folder / "netconf.json"
    access = {"kubeconfig": str(kube.kubeconfig(folder / "kubeconfig"))}
    file.write_text(json.dumps(netconf(name="net", datastore_type="orch", orch=access)))
    command = [str(Path(sys.executable).with_name("svcctl")), "--netconf", str(file), "ipam", "check", "-o", "json"]
    command += ["--report", str(folder / "report.json")]
    done = subprocess.run([sys.executable, "-c", _MEASURED, *command], capture_output=True, text=True, check=True)
    status, *numbers = done.stdout.split()
    assert status == "0", done.stderr
    summary: Json = json.loads(done.stderr)[0]["summary"]
    return Cost(*map(float, numbers)), summary
