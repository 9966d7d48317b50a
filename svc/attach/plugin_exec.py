"""Execute another plugin for a part of the work, as section 4 of the CNI specification describes it.

svc searches the plugin in CNI_PATH. The plugin gets the environment of the call with the verb in CNI_COMMAND. Stdin has the
network configuration, in the newest version of the specification that the plugin supports and the network allows.
"""

import os
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import orjson

from svc import deadline
from svc.call_trace import CallTrace
from svc.cpu_pinning import CPU_PINNING
from svc.model import cni_versions
from svc.model.errors import CallerError, Code, PeerError, PluginError
from svc.model.prev_result import parse_prev_result
from svc.model.result import Result
from svc.model.shortage import shortage

Json = dict[str, Any]

LIMIT_SECONDS: Final = 30.0  # timeout of a call of a plugin
_VERSION_SECONDS: Final = 10.0
_MAX_LINES: Final = 20  # logged lines of its stderr

_Signature = tuple[int, int, int]


def run_plugin(plugin: str, verb: str, netconf: Json, environment: Mapping[str, str], trace: CallTrace) -> Result | None:
    """Run the plugin. Return its result; None if the verb has no result, or if the plugin is too old for the verb.

    Raise PluginError if it returns an error, PeerError if it is missing, cannot be run or does not answer in time. Blocks.
    """
    executable = find(plugin, environment.get("CNI_PATH", ""))
    version = _version(executable, str(netconf.get("cniVersion") or cni_versions.SUPPORTED[0]), verb)
    if version is None:
        return None
    done = _run(executable, _variables(environment, verb), orjson.dumps({**netconf, "cniVersion": version}), LIMIT_SECONDS)
    failed = done.returncode != 0
    for line in done.stderr.decode(errors="backslashreplace").splitlines()[:_MAX_LINES]:
        (trace.warning if failed else trace.info)(f"{plugin}: {line}")
    if failed:
        raise _refusal(plugin, done)
    return _result(plugin, done.stdout, version) if verb == "ADD" else None


def find(plugin: str, path: str) -> Path:
    """Return the first file of that name in the directories of CNI_PATH. Raise PeerError if it does not exist."""
    folders = [Path(folder) for folder in path.split(":") if folder]
    for folder in folders:
        if (folder / plugin).is_file():
            return folder / plugin
    raise _failure(
        f"plugin {plugin!r} is not in CNI_PATH ({path})",
        "install it in one of these directories: it is one of the reference plugins (containernetworking-plugins)",
    )


def supported_versions(executable: Path) -> frozenset[str]:
    """Return the versions of the specification that both the plugin and svc support. Raise PeerError if it does not answer."""
    try:
        status = executable.stat()
    except OSError as failure:
        raise _not_executed(executable, failure) from None
    return _supported_versions(executable, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=64)
def _supported_versions(executable: Path, _signature: _Signature) -> frozenset[str]:
    """Do as `supported_versions`. The signature invalidates the cache if the file changes."""
    try:
        done = _run(executable, {"CNI_COMMAND": "VERSION"}, orjson.dumps({"cniVersion": cni_versions.LATEST}), _VERSION_SECONDS)
        told = orjson.loads(done.stdout)["supportedVersions"]
        return frozenset(version for version in told if version in cni_versions.SUPPORTED)
    except (ValueError, TypeError, KeyError) as error:
        msg = f"plugin {executable.name!r} ({executable}) does not tell its versions: {error}"
        raise _failure(msg, "see whether it is a CNI plugin") from None


def _version(executable: Path, wanted: str, verb: str) -> str | None:
    """Return the newest common version, not newer than the network's. Return None if the plugin is too old for the verb."""
    oldest = cni_versions.MINIMUM.get(verb, cni_versions.SUPPORTED[0])
    newest = max(wanted, oldest, key=cni_versions.parse)
    common = [version for version in supported_versions(executable) if cni_versions.at_least(newest, version)]
    known = [version for version in common if cni_versions.at_least(version, oldest)]
    if verb in cni_versions.MINIMUM or known:
        return max(known, key=cni_versions.parse, default=None)
    return wanted  # the plugin itself returns the error


def _variables(environment: Mapping[str, str], verb: str) -> dict[str, str]:
    """Return the variables of a call. IgnoreUnknown, because most plugins reject the pod's identity in CNI_ARGS."""
    variables = {"PATH": os.environ.get("PATH", os.defpath), **environment, "CNI_COMMAND": verb}
    if arguments := variables.get("CNI_ARGS"):
        variables["CNI_ARGS"] = f"IgnoreUnknown=1;{arguments}"
    return variables


def _run(executable: Path, variables: Mapping[str, str], stdin: bytes, seconds: float) -> "subprocess.CompletedProcess[bytes]":
    CPU_PINNING.unpin_thread()
    seconds = deadline.remaining(seconds)
    try:
        return subprocess.run([executable], env=variables, input=stdin, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        msg = f"plugin {executable.name!r} has not answered within {seconds:.3g} s"
        raise _failure(msg, f"{executable} was ended: see whether it waits for a lock or a disk") from None
    except OSError as failure:
        raise _not_executed(executable, failure) from None


def _not_executed(executable: Path, failure: OSError) -> PeerError:
    msg = f"plugin {executable.name!r} cannot be executed: {failure.strerror}"
    return shortage(failure) or _failure(msg, f"see {executable}: its mode, its architecture")


def _failure(msg: str, details: str) -> PeerError:
    return PeerError(msg, details=details, code=Code.DELEGATE)


def _refusal(plugin: str, done: "subprocess.CompletedProcess[bytes]") -> PeerError:
    try:
        told = orjson.loads(done.stdout)
        code, msg, details = int(told["code"]), str(told["msg"]), str(told.get("details") or "")
    except (ValueError, TypeError, KeyError):
        last = done.stderr.decode(errors="backslashreplace").splitlines()[-1:]
        how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"exited with status {done.returncode}"
        said = last[0] if last else "it said nothing: see the kernel's log"
        return _failure(f"plugin {plugin!r} {how} without an error object", said)
    return PluginError(msg if msg.startswith(f"{plugin}:") else f"{plugin}: {msg}", details=details, code=code)


def _result(plugin: str, stdout: bytes, version: str) -> Result:
    try:
        return parse_prev_result(stdout, version, f"result of {plugin}")
    except CallerError as error:
        raise _failure(error.msg, f"{error.details} (its output is not a result)") from None
