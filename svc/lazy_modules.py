"""Modules that are imported when something of them is used, for processes whose start has to be short.

Other packages import modules that they need in few cases: `dataclasses` imports `inspect`, which imports the parser of Python.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Postponed(ModuleType):
    """Stands for a module until one of its attributes is read."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def postpone(*names: str) -> None:
    """Have these modules imported when something of them is used, unless that was done already."""
    for name in names:
        sys.modules.setdefault(name, _Postponed(name))
