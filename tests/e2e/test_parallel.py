"""Many concurrent calls: their addresses are unique, nothing is left, and no call blocks others."""

import fcntl
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from harness.node import Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.skips import ONE_PROCESSOR
from harness.state import audit, disagreements, pod_links, remains, store_of
from svc.cni.locks import DIRECTORY, STATE
from svc.cpu_pinning import PIN_SECONDS
from svc.deploy.manifests.node import AGENT_MIB
from svc.model.keys import BlockQuery

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

CONCURRENT_CALLS = 16
BURST = 64  # callers at once


def test_hundred_concurrent_pods_get_unique_addresses(pods: MakePod, shared_node: Node) -> None:
    """The pods need more than one block, so the calls also claim affinities."""
    made = [pods(ipam={"assign_ipv6": "true"}) for _ in range(100)]
    with ThreadPoolExecutor(CONCURRENT_CALLS) as runtime:
        list(runtime.map(Pod.add, made))
    addresses = [address for pod in made for address in pod.addresses]
    assert len(set(addresses)) == len(addresses) == 200
    assert set(audit(shared_node).allocations) == set(addresses)
    assert len(pod_links(shared_node)) == 100
    assert disagreements(shared_node) == []
    with store_of(shared_node) as store:
        assert [len(store.list(BlockQuery(version))) for version in (4, 6)] == [2, 2]
    with ThreadPoolExecutor(CONCURRENT_CALLS) as runtime:
        list(runtime.map(Pod.delete, made))
    assert remains(shared_node) == []
    assert not any(pod.netns.links() for pod in made)


def test_memory_of_a_burst_is_bounded(own_pods: MakePod, node: Node) -> None:
    """A burst of many callers stays within the memory that the manifests request, and later ones need no more."""
    made, peaks = [own_pods() for _ in range(BURST)], []
    for _ in range(4):
        with ThreadPoolExecutor(BURST) as runtime:
            list(runtime.map(Pod.add, made))
            list(runtime.map(Pod.delete, made))
        peaks.append(peak_mib(node.agent_pid))
    assert peaks[-1] <= AGENT_MIB
    assert peaks[-1] - peaks[1] <= 4


def peak_mib(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason=ONE_PROCESSOR)
def test_concurrent_calls_run_on_one_processor_and_a_single_call_on_any(pods: MakePod, shared_node: Node) -> None:
    everywhere = frozenset(os.sched_getaffinity(0))
    made, seen = [pods() for _ in range(40)], set()
    with ThreadPoolExecutor(CONCURRENT_CALLS) as runtime:
        attached = [runtime.submit(pod.add) for pod in made]
        while not all(each.done() for each in attached):
            seen.add(frozenset(processors(shared_node)))
    assert any(len(some) == 1 and some < {frozenset({number}) for number in everywhere} for some in seen)
    time.sleep(2 * PIN_SECONDS)

    def runs_anywhere_after_one_call() -> bool:
        """Make a call, and return whether all threads may run on any processor. Periodic work may pin them, too."""
        assert made[0].check().status == 0
        return processors(shared_node) == {everywhere}

    wait_until(runs_anywhere_after_one_call)


def processors(node: Node) -> set[frozenset[int]]:
    """Return the distinct processor sets of the agent's threads, except the main thread, which only waits."""
    found = set()
    for thread in map(int, os.listdir(f"/proc/{node.agent_pid}/task")):
        with suppress(ProcessLookupError):
            if thread != node.agent_pid:
                found.add(frozenset(os.sched_getaffinity(thread)))
    return found


def test_churn_leaves_consistent_records(pods: MakePod, shared_node: Node) -> None:
    """Each pod is added and deleted several times, in a random order."""

    def churn(pod: Pod) -> None:
        for _ in range(random.randrange(2, 5)):
            pod.add()
            if random.random() < 0.3:
                assert pod.check().status == 0
            pod.delete()
        pod.add()

    made = [pods(ipam={"assign_ipv6": random.choice(("true", "false"))}) for _ in range(40)]
    with ThreadPoolExecutor(CONCURRENT_CALLS) as runtime:
        list(runtime.map(churn, made))
    assert disagreements(shared_node) == []
    assert set(audit(shared_node).allocations) == {address for pod in made for address in pod.addresses}


def test_two_equal_concurrent_adds_make_one_attachment(pods: MakePod, shared_node: Node) -> None:
    """A runtime may repeat an ADD while the first one still runs."""
    made = [pods() for _ in range(10)]
    with ThreadPoolExecutor(CONCURRENT_CALLS) as runtime:
        calls = [(runtime.submit(pod.call, "ADD"), runtime.submit(pod.call, "ADD")) for pod in made]
        answers = [(first.result(), second.result()) for first, second in calls]
    for first, second in answers:
        assert (first.status, second.status) == (0, 0)
        assert first.stdout == second.stdout
    assert len(audit(shared_node).allocations) == 10
    assert disagreements(shared_node) == []


def test_concurrent_add_and_del_of_a_container_leave_consistent_records(pods: MakePod, shared_node: Node) -> None:
    made = [pods() for _ in range(10)]
    with ThreadPoolExecutor(CONCURRENT_CALLS) as runtime:
        calls = [runtime.submit(pod.call, verb) for pod in made for verb in ("ADD", "DEL")]
        assert [call.result().status for call in calls] == [0] * 20
    assert disagreements(shared_node) == []


def test_concurrent_sandboxes_of_one_pod_leave_one_interface(pods: MakePod, shared_node: Node) -> None:
    """The new sandbox of a pod may be added before the old one's DEL."""
    made = [pods(args="IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0") for _ in range(2)]
    with ThreadPoolExecutor(CONCURRENT_CALLS) as runtime:
        calls = [runtime.submit(pod.call, "ADD") for pod in made]
        assert any(call.result().status == 0 for call in calls)
    assert len(pod_links(shared_node)) == 1


def test_last_addresses_of_a_pool_go_to_different_pods(own_pods: MakePod, node: Node) -> None:
    node.apply_pool("tiny", "10.70.0.0/29", blockSize=30)
    made = [own_pods(ipam={"ipv4_pools": ["tiny"]}) for _ in range(20)]
    with ThreadPoolExecutor(CONCURRENT_CALLS) as runtime:
        calls = list(runtime.map(lambda pod: pod.call("ADD"), made))
    assert sorted(call.status for call in calls) == [0] * 8 + [1] * 12
    assert {call.output["code"] for call in calls if call.status} == {101}
    assert len(audit(node).allocations) == 8
    assert disagreements(node) == []


def test_concurrent_one_shot_adds_get_unique_addresses(own_pods: MakePod, node: Node) -> None:
    node.stop_agent()
    made = [own_pods() for _ in range(8)]
    with ThreadPoolExecutor(8) as runtime:
        list(runtime.map(Pod.add, made))
    assert len({pod.addresses[0] for pod in made}) == 8
    assert disagreements(node) == []


def test_two_equal_concurrent_one_shot_adds_make_one_attachment(own_pods: MakePod, node: Node) -> None:
    node.stop_agent()
    made = [own_pods() for _ in range(4)]
    with ThreadPoolExecutor(8) as runtime:
        calls = [(runtime.submit(pod.call, "ADD"), runtime.submit(pod.call, "ADD")) for pod in made]
        answers = [(first.result(), second.result()) for first, second in calls]
    for first, second in answers:
        assert (first.status, second.status) == (0, 0)
        assert first.stdout == second.stdout
    assert len(audit(node).allocations) == 4
    assert disagreements(node) == []


def test_starting_agent_serves_all_waiting_one_shot_calls(own_pods: MakePod, node: Node) -> None:
    """The executables forward their calls to the agent."""
    node.stop_agent()
    made = [own_pods() for _ in range(8)]
    with ThreadPoolExecutor(9) as runtime, (node.state_dir / DIRECTORY / STATE).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        calls = [runtime.submit(pod.call, "ADD", log_level="Info") for pod in made]
        wait_until(lambda: openers(lock) == len(made) + 1)
        start = runtime.submit(node.start_agent)
        wait_until(lambda: openers(lock) == len(made) + 2)
        fcntl.flock(lock, fcntl.LOCK_UN)
        start.result()
        answers = [call.result() for call in calls]
    assert [answer.status for answer in answers] == [0] * len(made)
    assert all(" queue=" in answer.stderr for answer in answers), "a call was not served by the agent"
    assert disagreements(node) == []


def openers(lock: IO[str]) -> int:
    """Return the number of processes that have the file open."""
    inode = os.fstat(lock.fileno()).st_ino
    return sum(has_open(process, inode) for process in Path("/proc").glob("[0-9]*"))


def has_open(process: Path, inode: int) -> bool:
    with suppress(OSError):  # the process has ended
        return any(inode_of(descriptor) == inode for descriptor in (process / "fd").iterdir())
    return False


def inode_of(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:  # closed during the call
        return 0
