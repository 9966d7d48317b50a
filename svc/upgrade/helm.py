"""Runs of helm, the program that installs charts. It dies with this process, so that a killed run leaves none behind."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from svc.upgrade.outcomes import Blocked
from svc.values import dataclass

Json = dict[str, Any]

SECONDS: Final = 900  # for one run of helm
POLL_SECONDS: Final = 1.0  # between two looks at whether it may go on
Require = Callable[[], object]
"""Raise if the run must not write any more."""

_CHOSEN_HERE: Final = ("HELM_NAMESPACE", "HELM_KUBE", "HELM_DRIVER")
_DIE_WITH_PARENT: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)


class HelmFailed(Exception):
    """helm has ended with an error. The text is the last line that it has printed."""


@dataclass(frozen=True, slots=True)
class Helm:
    """The program, and the kubeconfig that it uses."""

    program: str = "helm"
    kubeconfig: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether the program exists."""
        return shutil.which(self.program) is not None

    def render(self, release: str, chart: str, namespace: str, values: Json, capabilities: Sequence[str]) -> str:
        """Return the manifest of a chart without its hooks. Ask no server. Raise HelmFailed."""
        with _values_file(values) as file:
            return self._run("template", release, chart, "-n", namespace, "-f", file, "--no-hooks", *capabilities)

    def definitions(self, chart: str) -> str:
        """Return the definitions that a chart brings beside its templates. Raise HelmFailed."""
        return self._run("show", "crds", chart)

    def upgrade(self, release: str, chart: str, namespace: str, values: Json, require: Require) -> None:
        """Upgrade a release; install it if it does not exist. Raise HelmFailed."""
        with _values_file(values) as file:
            words = ("upgrade", "--install", release, chart, "-n", namespace, "-f", file, "--reset-values")
            self._run(*words, require=require)

    def roll_back(self, release: str, revision: int, namespace: str, require: Require) -> None:
        """Bring back a revision of a release, as a new revision. Raise HelmFailed."""
        self._run("rollback", release, str(revision), "-n", namespace, require=require)

    def _run(self, *words: str, require: Require | None = None) -> str:
        found = shutil.which(self.program)
        if found is None:
            raise Blocked([missing(self.program)], details="name it with --helm")
        access = ["--kubeconfig", self.kubeconfig] if self.kubeconfig else []
        command = [sys.executable, "-I", "-c", _DIE_WITH_PARENT, str(os.getpid()), found, *words, *access]
        try:
            status, out, error = _output(command, require)
        except OSError as failure:
            raise HelmFailed(f"{self.program}: {failure}") from failure
        if status != 0:
            lines = error.strip().splitlines() or [f"{self.program} ended with status {status}"]
            raise HelmFailed(lines[-1].removeprefix("Error: "))
        return out


def missing(program: str) -> str:
    """Return the sentence about a program that does not exist."""
    return f"the program {program} is not on PATH"


def shown(release: str, chart: str, namespace: str, values: str) -> str:
    """Return the command that a user runs in place of svcctl. Without a file of values, those of the release stay."""
    kept = f"-f {values} --reset-values" if values else "--reuse-values"
    return f"helm upgrade --install {release} {chart} -n {namespace} {kept}"


def _output(command: Sequence[str], require: Require | None) -> tuple[int, str, str]:
    """Run a program; return its status and output. Kill it if it takes too long, or if `require` raises. Raise HelmFailed."""
    until = time.monotonic() + SECONDS
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
        env=_environment(os.environ),
        start_new_session=True,  # Ctrl-C does not break it off
    ) as process:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    out, error = process.communicate(timeout=POLL_SECONDS)
                    return process.returncode, out, error
                if time.monotonic() > until:
                    raise HelmFailed(f"helm has not ended after {SECONDS} s")
                if require is not None:
                    require()
        finally:
            process.kill()


def _environment(outer: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of helm. Releases are in Secrets, and the cluster is that of the command."""
    kept = {name: text for name, text in outer.items() if not name.startswith(_CHOSEN_HERE) and name != "KUBECONFIG"}
    return kept | {"HELM_DRIVER": "secret"}


@contextmanager
def _values_file(values: Json) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "values.yaml")
        file.write_text(yaml.safe_dump(values))
        yield str(file)
