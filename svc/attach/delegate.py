"""Executing another plugin for a part of the work, as the CNI specification describes it (section 4).

It is looked for in CNI_PATH, gets the environment of the call with the verb in CNI_COMMAND, and the network configuration on
stdin, in the newest version of the specification that it speaks and the network allows.
"""

import os
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import orjson

from svc import deadline
from svc.herd import HERD
from svc.model import versions
from svc.model.errors import CallerError, Code, PeerError
from svc.model.prevresult import parse_prev_result
from svc.model.result import Result
from svc.model.shortage import shortage
from svc.trace import Trace

Json = dict[str, Any]

LIMIT: Final = 30.0  # seconds for a plugin to answer
_TELLING: Final = 10.0  # to tell its versions
_LISTED: Final = 20  # lines of its stderr

_Signature = tuple[int, int, int]


class Refused(PeerError):
    """The plugin ran, and answered with an error: its own code, message and details."""

    code = Code.DELEGATE


def delegate(plugin: str, verb: str, netconf: Json, environment: Mapping[str, str], trace: Trace) -> Result | None:
    """What the plugin answers; None for a verb without a result, and for one that the plugin is too old for.

    Refused; PeerError when it is not found, cannot be run or does not answer in time.
    """
    executable = find(plugin, environment.get("CNI_PATH", ""))
    version = _version(executable, str(netconf.get("cniVersion") or versions.SUPPORTED[0]), verb)
    if version is None:
        return None
    done = _run(executable, _variables(environment, verb), orjson.dumps({**netconf, "cniVersion": version}), LIMIT)
    failed = done.returncode != 0
    for line in done.stderr.decode(errors="backslashreplace").splitlines()[:_LISTED]:
        (trace.warning if failed else trace.info)(f"{plugin}: {line}")
    if failed:
        raise _refusal(plugin, done)
    return _result(plugin, done.stdout, version) if verb == "ADD" else None


def find(plugin: str, path: str) -> Path:
    """The first file of that name in the directories of CNI_PATH. PeerError."""
    folders = [Path(folder) for folder in path.split(":") if folder]
    for folder in folders:
        if (folder / plugin).is_file():
            return folder / plugin
    raise PeerError(
        f"plugin {plugin!r} is not in CNI_PATH ({path})",
        details="install it in one of these directories: it is one of the reference plugins (containernetworking-plugins)",
        code=Code.DELEGATE,
    )


def spoken(executable: Path) -> frozenset[str]:
    """The versions of the specification that a plugin speaks, of those that we know. PeerError when it does not tell."""
    try:
        status = executable.stat()
    except OSError as failure:
        raise _not_executed(executable, failure) from None
    return _spoken(executable, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=64)
def _spoken(executable: Path, _signature: _Signature) -> frozenset[str]:
    """Remembered for as long as the file stays the same."""
    try:
        done = _run(executable, {"CNI_COMMAND": "VERSION"}, orjson.dumps({"cniVersion": versions.LATEST}), _TELLING)
        told = orjson.loads(done.stdout)["supportedVersions"]
        return frozenset(version for version in told if version in versions.SUPPORTED)
    except (ValueError, TypeError, KeyError) as error:
        raise PeerError(
            f"plugin {executable.name!r} ({executable}) does not tell its versions: {error}",
            details="see whether it is a CNI plugin",
            code=Code.DELEGATE,
        ) from None


def _version(executable: Path, wanted: str, verb: str) -> str | None:
    """The one to speak with the plugin: no newer than the network's, but new enough to know the verb. None: there is none."""
    oldest = versions.MINIMUM.get(verb, versions.SUPPORTED[0])
    newest = max(wanted, oldest, key=versions.parse)
    common = [version for version in spoken(executable) if versions.at_least(newest, version)]
    known = [version for version in common if versions.at_least(version, oldest)]
    if verb in versions.MINIMUM or known:
        return max(known, key=versions.parse, default=None)
    return wanted  # it says itself that it cannot


def _variables(environment: Mapping[str, str], verb: str) -> dict[str, str]:
    """The pod's identity in CNI_ARGS means nothing to most plugins, and must not be their error."""
    variables = {"PATH": os.environ.get("PATH", os.defpath), **environment, "CNI_COMMAND": verb}
    if arguments := variables.get("CNI_ARGS"):
        variables["CNI_ARGS"] = f"IgnoreUnknown=1;{arguments}"
    return variables


def _run(executable: Path, variables: Mapping[str, str], stdin: bytes, seconds: float) -> "subprocess.CompletedProcess[bytes]":
    HERD.leave()
    seconds = deadline.remaining(seconds)
    try:
        return subprocess.run([executable], env=variables, input=stdin, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise PeerError(
            f"plugin {executable.name!r} has not answered within {seconds:.3g} s",
            details=f"{executable} was ended: see whether it waits for a lock or a disk",
            code=Code.DELEGATE,
        ) from None
    except OSError as failure:
        raise _not_executed(executable, failure) from None


def _not_executed(executable: Path, failure: OSError) -> PeerError:
    return shortage(failure) or PeerError(
        f"plugin {executable.name!r} cannot be executed: {failure.strerror}",
        details=f"see {executable}: its mode, its architecture",
        code=Code.DELEGATE,
    )


def _refusal(plugin: str, done: "subprocess.CompletedProcess[bytes]") -> PeerError:
    try:
        told = orjson.loads(done.stdout)
        code, msg, details = int(told["code"]), str(told["msg"]), str(told.get("details") or "")
    except (ValueError, TypeError, KeyError):
        last = done.stderr.decode(errors="backslashreplace").splitlines()[-1:]
        how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"exited with status {done.returncode}"
        return PeerError(
            f"plugin {plugin!r} {how} without an error object",
            details=last[0] if last else "it said nothing: see the kernel's log",
            code=Code.DELEGATE,
        )
    return Refused(msg if msg.startswith(f"{plugin}:") else f"{plugin}: {msg}", details=details, code=code)


def _result(plugin: str, stdout: bytes, version: str) -> Result:
    try:
        return parse_prev_result(stdout, version, f"result of {plugin}")
    except CallerError as fault:
        raise PeerError(fault.msg, details=f"{fault.details} (its output is no result)", code=Code.DELEGATE) from None
