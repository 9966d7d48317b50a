"""A node whose agent runs in the test's own process, and the calls that it serves."""

import gc
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from harness.ipam import put_pool
from harness.netns import Netns
from harness.node import POOL4, POOL6, netconf
from harness.polling import wait_until
from svc.agent.server import Agent, Settings
from svc.attach.journal import Journal
from svc.attach.record import Record
from svc.cni.agent_client import call
from svc.cni.call_io import CallInput
from svc.cni.install_record import SOCKET_NAME
from svc.cni.locks import is_agent_listening
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE

CALL_SECONDS = 30.0


class ResidentNode:
    """A node with a pool of each family. The calling thread is the main one, inside the namespace that acts as the host."""

    def __init__(self, directory: Path) -> None:
        self.state_dir, self.run_dir = directory / "state", directory / "run"
        self.socket = self.run_dir / SOCKET_NAME
        self.config = netconf(log_file_path=str(directory / "log"))
        with closing(self.store()) as store:
            put_pool(store, "pool4", POOL4)
            put_pool(store, "pool6", POOL6)

    def store(self) -> EmbeddedStore:
        return EmbeddedStore(self.state_dir / EMBEDDED_FILE)

    def rows(self) -> list[Record]:
        with closing(Journal(self.state_dir / "journal.db")) as journal:
            return journal.all()

    def serve(self, body: Callable[[], object], metrics: tuple[str, int] | None = None) -> int:
        """Run the agent in this thread. When it listens, run `body` in another thread and then stop the agent.

        Return the exit status of the agent. Raise what `body` raises.
        """
        agent = Agent(Settings(self.socket, self.state_dir, self.run_dir, (metrics,) if metrics else ()))

        def run_body() -> None:
            try:
                wait_until(lambda: is_agent_listening(self.socket))
                body()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        before = signal.signal(signal.SIGTERM, lambda *_: None)  # for an agent that has ended by itself
        try:
            with ThreadPoolExecutor(1) as pool:
                done = pool.submit(run_body)
                status = agent.run()
            done.result()
        finally:
            signal.signal(signal.SIGTERM, before)
            gc.unfreeze()
        return status

    def call(
        self, verb: str, pod: Netns | None = None, *, container: str = "c1", args: str = "", plugin: str = "svc",
        profile: str = "", **config: Any,
    ) -> Any:  # fmt: skip
        """Return the decoded output of a call, which is an error object if the call fails."""
        environment = {
            "CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0", "CNI_ARGS": args,
            "CNI_PATH": "/usr/lib/cni", "CNI_NETNS": pod.path if pod else "",
        }  # fmt: skip
        inputs = CallInput(plugin, environment, orjson.dumps(self.config | config), profile=profile)
        descriptor = os.open(pod.path, os.O_RDONLY | os.O_CLOEXEC) if pod else -1
        try:
            reply = call(str(self.socket), inputs, netns_fd=descriptor, timeout=CALL_SECONDS)
        finally:
            if pod:
                os.close(descriptor)
        output = orjson.loads(reply.stdout or b"null")
        assert bool(reply.status) == (output is not None and "code" in output), output
        return output
