"""Modules that are imported when something of them is used, for processes whose start has to be short.

Other packages import modules that they need in few cases: `dataclasses` imports `inspect`, which imports the parser of Python.
"""

import sys
from _thread import RLock
from importlib import import_module
from types import ModuleType
from typing import Any

_lock = RLock()  # held to remove a stand-in: another thread may have done that, and be importing the module


class _Postponed(ModuleType):
    """Stands for a module until one of its attributes is read."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def postpone(*names: str) -> None:
    """Have these modules imported when something of them is used, unless that was done already.

    Use something of a package before a statement such as `import package.module`, which would load that module twice."""
    for name in names:
        sys.modules.setdefault(name, _Postponed(name))
