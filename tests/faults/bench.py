"""The bench: a node lives, is killed at a random moment, and lives again."""

import itertools
import json
import logging
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from faults.api_faults import faulty_api
from faults.servers import MEMBERS, disturbed
from faults.victim import NODE, THREADS, Node, live
from harness.datastores import set_ready
from harness.enter_netns import entered
from harness.etcd import cluster
from harness.ipam import put_node
from harness.kube import Kube, running
from harness.netns import Netns, run
from harness.orch import AdministratorStore, install
from svc.dataplane import wire
from svc.datastore.api import Backend
from svc.datastore.open import open_backend
from svc.names import DEFAULT

LEADERS: Final = "etcdv3-leaders"  # three members, whose leader ends or answers late
ORCH: Final = "orch"
STORES: Final = ("embedded", "etcdv3", LEADERS, ORCH)
CONTAINERS: Final = 2 * THREADS
START_SECONDS: Final = 60.0
MAX_API_LIFE_SECONDS: Final = 0.5  # with the Kubernetes API, where a call sends more than ten requests
MAX_DISTURBED_SECONDS: Final = 0.8  # of a life while a server has a fault


class Broken(Exception):
    """Something was lost, leaked or assigned twice. The message has the seed of the life before."""


@contextmanager
def node_on(store: str, seed: int, *, with_troubles: bool) -> Iterator[Node]:
    """Return a node with its namespaces and datastore. The calling thread is inside the node's namespace."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        host = stack.enter_context(Netns("host"))
        sandboxes = [stack.enter_context(Netns("sandbox")) for _ in range(CONTAINERS)]
        stack.enter_context(entered(host))
        run("ip", "link", "set", "lo", "up")
        server = folder / "server"
        server.mkdir()
        if store == STORES[0]:
            yield Node(folder, {"kind": store}, host, sandboxes)
        elif store == ORCH:
            kube = stack.enter_context(running(server))
            settings = _set_up_api(kube, folder)
            switch = None
            if with_troubles:
                settings["orch_api_root"], switch = stack.enter_context(faulty_api(kube, seed))
            yield Node(folder, settings, host, sandboxes, kube=kube, api_faults=switch, longest_life=MAX_API_LIFE_SECONDS)
        else:
            members = stack.enter_context(cluster(server, MEMBERS if store == LEADERS else 1))
            settings = {"kind": "etcdv3", "etcd_endpoints": members.endpoints}
            _set_up(partial(open_backend, settings, folder, DEFAULT))
            yield Node(folder, settings, host, sandboxes, members if store == LEADERS else None)


def _set_up_api(kube: Kube, folder: Path) -> dict[str, str]:
    """Install the custom resources and initialise the datastore. Return its settings."""
    install(kube)
    _set_up(lambda: AdministratorStore(kube.connected_again(), folder))
    return {"kind": ORCH, "kubeconfig": str(kube.kubeconfig(folder / "kubeconfig"))}


def _set_up(open_store: Callable[[], Backend]) -> None:
    """Initialise a shared datastore in a process of its own: connections and their threads do not survive a fork."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with closing(open_store()) as store:
                set_ready(store)
                put_node(store, NODE)
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the datastore could not be set up")


def kill_repeatedly(node: Node, kills: int, seed: int, *, with_troubles: bool) -> None:
    """Let the node live and be killed so many times. Raise Broken at the first contradiction, and at the end for remains."""
    dice = random.Random(seed)
    for number in range(kills + 1):
        problems = _life(node, seed + number, dice, is_last=number == kills, with_troubles=with_troubles)
        if problems:
            raise Broken(f"after kill {number}, seed {seed + number - 1}: {'; '.join(problems)}")


def _life(node: Node, seed: int, dice: random.Random, *, is_last: bool, with_troubles: bool) -> list[str]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_killed(node, seed, writing, is_last=is_last, with_troubles=with_troubles)
    os.close(writing)
    try:
        problems = _announced(reading)
        if not problems and not is_last:
            _let_live(node, pid, dice)
        return problems
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _let_live(node: Node, pid: int, dice: random.Random) -> None:
    if node.servers is None:
        time.sleep(dice.uniform(0, node.longest_life))
        return
    with disturbed(node.servers, dice) as fault:
        time.sleep(dice.uniform(0, node.longest_life if fault == "none" else MAX_DISTURBED_SECONDS))
        os.kill(pid, signal.SIGKILL)


def _be_killed(node: Node, seed: int, writing: int, *, is_last: bool, with_troubles: bool) -> None:
    """Live in a forked process, which never returns."""
    vars(wire)["_indexes"] = itertools.count(random.Random(seed).randrange(1 << 17, 1 << 29))  # each agent chooses its own
    logging.disable()  # warnings about ordered faults
    try:
        live(
            node,
            seed,
            is_last=is_last,
            with_troubles=with_troubles,
            announce=lambda problems: _announce(writing, problems),
        )
    except BaseException:
        _announce(writing, [traceback.format_exc()])
    finally:
        sys.stderr.flush()
        os._exit(0)


def _announce(writing: int, problems: list[str]) -> None:
    os.write(writing, json.dumps(problems).encode() + b"\n")


def _announced(reading: int) -> list[str]:
    data = b""
    while not data.endswith(b"\n"):
        if not select.select([reading], [], [], START_SECONDS)[0]:
            return [f"the node was not ready within {START_SECONDS:g} s"]
        part = os.read(reading, 1 << 16)
        if not part:
            return ["the node ended before it was ready"]
        data += part
    return [str(each) for each in json.loads(data)]
