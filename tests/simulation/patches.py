"""Replacement of the imports of the product's modules by the models."""

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import svc.attach.context
import svc.attach.delete
import svc.attach.gc
import svc.attach.intent
import svc.attach.journal
import svc.attach.recovery
import svc.attach.teardown
import svc.attach.transaction
import svc.cni.locks
import svc.cni.oneshot
import svc.datastore.sqlite
import svc.waits.gates
import svc.waits.policy
from simulation import blocking
from simulation.blocking import Current, FileLocks
from simulation.files import Files
from simulation.machine import ModelForwarding, ModelKernel, ModelReaper, model_stands, model_wire
from svc._core.netns import own_netns_identity
from svc.private_directory import make_private

_MODULES = {"threading": blocking.Threading, "time": blocking.Time, "fcntl": blocking.FileLocks, "datetime": blocking.Clock}
_PRIMITIVES = {
    threading.Lock: blocking.Lock,
    threading.RLock: blocking.RLock,
    threading.Condition: blocking.Condition,
    threading.Event: blocking.Event,
}


class Random:
    """A model of the module `random` with the schedule's own source."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Current.random, name)


class SystemFile:
    """A model of the path of a constant file of the machine."""

    def __init__(self, path: str) -> None:
        self._text = Path(path).read_text()

    def read_text(self) -> str:
        return self._text


class Hooks:
    """The functions that `svc.cni.oneshot` uses. Each schedule sets them."""

    steps: Any = None
    forward: Any = None
    is_agent_listening: Any = None


@contextmanager
def models(files: Files) -> Iterator[None]:
    """Run the product's code on the models inside the `with` block."""
    changed: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for module in [module for name, module in sys.modules.items() if name.startswith("svc.")]:
        _put_modules(module, put)
        for value in list(vars(module).values()):
            if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__:
                _put_factories(value, put)
    for name, model in (("Kernel", ModelKernel), ("Reaper", ModelReaper), ("ForwardingSysctls", ModelForwarding)):
        put(svc.attach.context, name, model)
    put(svc.attach.context, "Path", cache(SystemFile))
    put(svc.attach.context, "netns", SimpleNamespace(own_netns_identity=cache(own_netns_identity)))
    put(svc.attach.context, "_this_claimant", cache(svc.attach.context._this_claimant))
    put(svc.attach.transaction, "wire", model_wire)
    put(svc.attach.intent, "stands", model_stands)
    put(svc.attach.teardown, "remove_inside", lambda *_: False)  # no program moves interfaces in the simulation
    put(svc.datastore.sqlite, "connect", files.connect)
    put(svc.datastore.sqlite, "identities", cache(svc.datastore.sqlite.identities))  # no file is replaced in the simulation
    put(svc.cni.locks, "make_private", cache(make_private))
    put(svc.cni.oneshot, "find_agent_elsewhere", lambda *_: None)  # the real one reads the contents of lock files
    put(svc.cni.oneshot, "is_agent_listening", lambda node: Hooks.is_agent_listening(node))
    put(svc.cni.oneshot, "_steps", lambda *arguments: Hooks.steps(*arguments))
    put(svc.cni.oneshot, "_forward_to_agent", lambda *arguments: Hooks.forward(*arguments))
    put(svc.cni.locks.LockFile, "note", lambda lock, purpose, _=None: FileLocks.note(lock, purpose))
    put(svc.cni.locks.LockFile, "holder", lambda lock: FileLocks.holder(lock))
    try:
        yield
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)


def _put_modules(module: ModuleType, put: Any) -> None:
    for name, model in _MODULES.items():
        present = getattr(module, name, None)
        if (isinstance(present, ModuleType) and present.__name__ == name) or present is datetime:
            put(module, name, model)
    if getattr(module, "random", None) is random:
        put(module, "random", Random())


def _put_factories(kind: type, put: Any) -> None:
    """Replace the factories of dataclass defaults, which are in the closure of the constructor."""
    for cell in getattr(kind.__init__, "__closure__", None) or ():  # type: ignore[misc]
        try:
            model = _PRIMITIVES.get(cell.cell_contents)
        except (TypeError, ValueError):
            continue
        if model is not None:
            put(cell, "cell_contents", model)
