"""The cost of the native executable to a runtime: posix_spawn and wait, compared with a program that does nothing.

Prints one JSON object a line, times in microseconds, medians of interleaved rounds:
    null      a static program of `int main(){return 0;}`
    version   VERSION, which needs no agent
    call      a STATUS to a server that replies at once; `agent` is that server's time from accept to its reply,
              `own` is the whole call minus that time
"""

import argparse
import json
import mmap
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import ROOT
from svc.cni.frame import RequestReader, pack_reply

NETCONF = b'{"cniVersion":"1.1.0","name":"net","type":"svc","ipam":{"type":"svc-ipam"}}'
RESULT = b'{"cniVersion":"1.1.0"}\n'
SPARE_ROUNDS = 20  # rounds that fill caches and page cache


def compiler_and_flags() -> list[str]:
    """Return the compiler and flags of the build's command line, with musl if it is installed."""
    text = (ROOT / "CMakeLists.txt").read_text()
    recipe = re.search(r"COMMAND \$\{shim_cc\}(.*?)-o svc\b", text, re.DOTALL)
    links = re.findall(r"(?:set\(|APPEND )shim_links \"(\S+)\"\)", text)[:2]  # of all compilers, and of musl-gcc and gcc
    assert recipe, "CMakeLists.txt does not contain the command line of the build any more"
    assert len(links) == 2, "CMakeLists.txt does not set shim_links as before"
    command = recipe[1].replace("${SKBUILD_PROJECT_VERSION}", "bench").replace("${shim_links}", "".join(links))
    return [shutil.which("musl-gcc") or "gcc", *shlex.split(command)]


def build(directory: Path, shim: Path | None) -> tuple[Path, Path]:
    """Build the null program and the executable, and install them for an agent in the same directory."""
    null, installed = directory / "null", directory / "svc"
    (directory / "null.c").write_text("int main(void) { return 0; }\n")
    subprocess.run([*compiler_and_flags(), "-o", null, directory / "null.c"], check=True)
    if shim:
        shutil.copy(shim, installed)
    else:
        subprocess.run([*compiler_and_flags(), "-o", installed, *(ROOT / "_core").glob("shim*.c")], check=True)
    (directory / "svc.install").write_text(f"socket={directory}/agent.sock\npython=/nonexistent\nend=record\n")
    (directory / "netconf").write_bytes(NETCONF)
    return null, installed


@contextmanager
def echo_server(path: Path) -> Iterator[Callable[[], float]]:
    """Run a separate process that replies at once. Return a function with the microseconds of its last reply."""
    shared = mmap.mmap(-1, 8)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        pid = os.fork()
        if pid == 0:
            serve(listener, shared)
    try:
        yield lambda: float(struct.unpack("q", shared[:])[0]) / 1000
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def serve(listener: socket.socket, shared: mmap.mmap) -> None:
    reply = pack_reply(0, RESULT, b"")
    while True:
        connection, _ = listener.accept()
        started = time.perf_counter_ns()
        reader = RequestReader()
        while reader.feed(connection.recv(1 << 16)) is None:
            pass
        shared[:] = struct.pack("q", time.perf_counter_ns() - started)
        connection.sendall(reply)
        connection.close()


def spawn(program: Path, verb: str, directory: Path) -> float:
    """Return the microseconds from posix_spawn to the end of the process."""
    files = [
        (os.POSIX_SPAWN_OPEN, 0, str(directory / "netconf"), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
    ]
    environment = {"CNI_COMMAND": verb, "CNI_PATH": "/opt/cni/bin", "PATH": "/usr/bin", "HOME": "/root"}
    started = time.perf_counter_ns()
    pid = os.posix_spawn(program, [program.name], environment, file_actions=files)
    _, status = os.waitpid(pid, 0)
    elapsed = time.perf_counter_ns() - started
    assert status == 0, f"{program.name} {verb} ended with {status}"
    return elapsed / 1000


def measure(directory: Path, null: Path, shim: Path, rounds: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {"null": [], "version": [], "call": [], "agent": [], "own": []}
    with echo_server(directory / "agent.sock") as agent_time:
        for _ in range(SPARE_ROUNDS + rounds):
            times["null"].append(spawn(null, "", directory))
            times["version"].append(spawn(shim, "VERSION", directory))
            times["call"].append(spawn(shim, "STATUS", directory))
            times["agent"].append(agent_time())
            times["own"].append(times["call"][-1] - times["agent"][-1])
    median = {name: round(statistics.median(values[SPARE_ROUNDS:]), 1) for name, values in times.items()}
    return {
        "null": {"us": median["null"]},
        "version": {"us": median["version"], "ratio_to_null": round(median["version"] / median["null"], 2)},
        "call": {
            "us": median["call"],
            "agent_us": median["agent"],
            "own_us": median["own"],
            "own_less_null_us": round(median["own"] - median["null"], 1),
            "ratio_to_null": round(median["own"] / median["null"], 2),
            "goal_own_us": 200.0,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shim", type=Path, help="an executable that is built already")
    parser.add_argument("--rounds", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        null, shim = build(Path(name), options.shim)
        machine = {"shim_bytes": shim.stat().st_size, "rounds": options.rounds, "kernel": platform.release()}
        machine["machine"] = platform.machine()
        for program, figures in measure(Path(name), null, shim, options.rounds).items():
            print(json.dumps({"name": f"shim_{program}", **figures, **machine}))


if __name__ == "__main__":
    main()
