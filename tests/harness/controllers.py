"""Processes of svc-controllers, on a real API server."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from harness import kill_point, marred_program
from harness.datastores import EtcdSite, Site
from harness.kube import Kube
from harness.polling import wait_until
from svc.datastore.orch.leases import LEASES
from svc.names import DEFAULT

Json = dict[str, Any]

LEASE = f"{LEASES}/{DEFAULT.controllers}"
NAMESPACES = "/api/v1/namespaces"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
PROGRAM = (sys.executable, "-m", "svc.controllers.main", "run")

_ROUND = re.compile(r"controller (?!configuration)\S+: a full round of (\S+) took ([0-9.]+) s")
_TABLE = re.compile(r"^(\S+ \S+) .* table of (.+): ([0-9]+) rows after", re.MULTILINE)
_MOMENT = len("2026-01-02 03:04:05,678")


def variables_of(site: Site) -> dict[str, str]:
    """Return the environment variables that name a datastore."""
    return {"ETCD_ENDPOINTS": site.running.endpoints} if isinstance(site, EtcdSite) else {"DATASTORE_TYPE": "orch"}


class Process:
    """A process of svc-controllers, with its log."""

    def __init__(self, log: Path, environment: dict[str, str], *arguments: str, program: Sequence[str] = PROGRAM) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*program, *arguments], stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=_outer() | environment
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        return self.log.read_text()

    def await_line(self, part: str, count: int = 1) -> None:
        """Wait until this text was logged so often."""
        wait_until(lambda: self.text.count(part) >= count)

    def await_lead(self, count: int = 1) -> None:
        self.await_line("this process leads", count)

    def rounds(self) -> dict[str, list[float]]:
        """Return the seconds of each full round by part of a controller, configuration excluded. They are logged at `debug`."""
        found: dict[str, list[float]] = {}
        for name, seconds in _ROUND.findall(self.text):
            found.setdefault(name, []).append(float(seconds))
        return found

    def tables(self) -> dict[str, int]:
        """Return the rows of each table after its first listing. They are in the log of level `debug`."""
        return {what: int(rows) for _, what, rows in reversed(_TABLE.findall(self.text))}

    def filled_at(self) -> float:
        """Return when the last of the tables was filled (Unix time)."""
        return max(_logged_at(moment) for moment, _, _ in _TABLE.findall(self.text))

    def quiet_seconds(self) -> float:
        """Return the seconds since a full round ended; 0 before the first."""
        *_, latest = ("", *(line for line in self.text.splitlines() if _ROUND.search(line)))
        return time.time() - _logged_at(latest[:_MOMENT]) if latest else 0.0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        """End the process by SIGTERM, and return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.poll()

    def await_end(self, seconds: float = 60.0) -> int:
        """Wait until the process has ended by itself, and return its exit status."""
        return self._process.wait(seconds)

    def close(self) -> None:
        self.kill()
        assert "Traceback" not in self.text, self.text


class Cluster:
    """An API server with processes of svc-controllers that have the same environment."""

    def __init__(self, kube: Kube, folder: Path, stack: ExitStack, environment: Mapping[str, str]) -> None:
        self.kube = kube
        self.environment = {"KUBECONFIG": str(kube.kubeconfig(folder / "kubeconfig")), "RECONCILER_PERIOD": "2s", **environment}
        self._folder = folder
        self._stack = stack
        self._started = 0

    def start(self, *arguments: str, program: Sequence[str] = PROGRAM, **environment: str) -> Process:
        """Start another process."""
        self._started += 1
        log, health = (self._folder / f"{self._started}.{suffix}" for suffix in ("log", "health"))
        process = Process(log, self.environment | {"HEALTH_FILE": str(health)} | environment, *arguments, program=program)
        self._stack.callback(process.close)
        return process

    def kill_itself(self, point: str, when: str, **environment: str) -> None:
        """Run a process until it kills itself before or after this function, then let the next process lead at once."""
        self._started += 1
        log = self._folder / f"{self._started}.log"
        program = (sys.executable, kill_point.__file__, point, when, "svc.controllers.main", "run")
        process = Process(log, self.environment | environment, program=program)
        self._stack.callback(process.close)
        assert process.await_end() == -signal.SIGKILL, process.text
        self.kube.forget("leases/kube-system/")

    def start_marred(self, plan: Json, **environment: str) -> Process:
        """Start another process by `marred_program`, with a plan."""
        self._started += 1
        program = (sys.executable, marred_program.__file__, json.dumps(plan), *PROGRAM[2:])
        health = {"HEALTH_FILE": str(self._folder / f"{self._started}.health")}
        process = Process(self._folder / f"{self._started}.log", self.environment | health | environment, program=program)
        self._stack.callback(process.close)
        return process

    def make_namespace(self, name: str, **labels: str) -> Json:
        return self.kube.call("POST", NAMESPACES, {"metadata": {"name": name, "labels": labels}})

    def label_namespace(self, name: str, **labels: str) -> None:
        self.kube.call("PATCH", f"{NAMESPACES}/{name}", {"metadata": {"labels": labels}}, "application/merge-patch+json")

    def make_account(self, namespace: str, name: str, **labels: str) -> None:
        body = {"metadata": {"name": name, "labels": labels}}
        self.kube.call("POST", f"{NAMESPACES}/{namespace}/serviceaccounts", body)

    def make_policy(self, namespace: str, name: str, **spec: Any) -> None:
        body = {"metadata": {"name": name}, "spec": {"podSelector": {}, **spec}}
        self.kube.call("POST", POLICIES.format(namespace), body)

    def change_policy(self, namespace: str, name: str, **spec: Any) -> None:
        path = f"{POLICIES.format(namespace)}/{name}"
        self.kube.call("PATCH", path, {"spec": spec}, "application/merge-patch+json")

    def delete_policy(self, namespace: str, name: str) -> None:
        self.kube.call("DELETE", f"{POLICIES.format(namespace)}/{name}")

    def take_lease(self, holder: str) -> None:
        """Make another process the holder of the Lease, as that process would after its expiry."""
        self.kube.call("PATCH", LEASE, {"spec": {"holderIdentity": holder}}, "application/merge-patch+json")

    def clear(self) -> None:
        """Delete what tests create. Their namespaces begin with `c-`."""
        self.kube.forget("networkpolicies/c-", "serviceaccounts/c-", "namespaces/c-", "leases/kube-system/")


@contextmanager
def cluster(kube: Kube, folder: Path, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Yield a cluster without controllers. At the end, kill its processes; none may have logged a traceback."""
    with ExitStack() as stack:
        made = Cluster(kube, folder, stack, environment)
        stack.callback(made.clear)
        yield made


def _outer() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith(("ETCD", "SVC_", "KUBE"))}


def _logged_at(moment: str) -> float:
    """Return the Unix time that a line of a log begins with."""
    return datetime.strptime(moment, "%Y-%m-%d %H:%M:%S,%f").timestamp()
