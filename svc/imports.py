"""Imports that come with their first use, in a process that lives on if one of them fails.

Python removes a module whose import has failed, but not its submodules that were imported by then. A package that is imported
again lacks them: a submodule that is in `sys.modules` is not bound to its package a second time. Without a cure, a short lack
of file descriptors during one import would make the package unusable for the life of the process.
"""

import errno
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from os import strerror
from types import ModuleType
from typing import Final

from svc.descriptors import require_descriptors

SPARE_DESCRIPTORS: Final = 8  # with which an import begins: an extension module that fails half-way may not be loadable again

_lock: Final = threading.RLock()
_SHORTAGES: Final = {strerror(number): number for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)}


@contextmanager
def whole_imports() -> Iterator[None]:
    """Import packages in the block, one thread at a time. If it raises, the next import of them starts from the beginning.

    OSError for want of file descriptors or memory, also where Python raises ImportError for it.
    """
    with _lock:
        require_descriptors(SPARE_DESCRIPTORS)
        try:
            yield
        except BaseException as failure:
            _remove_orphans()
            if isinstance(failure, ImportError) and (shortage := _shortage(failure)):
                raise shortage from failure
            raise


def _remove_orphans() -> None:
    """Remove the submodules of packages that are not there.

    Extension modules stay, since many cannot be loaded twice, and so do whole packages, whose objects these may use.
    """
    for name in sorted(sys.modules):
        package = name.rpartition(".")[0]
        if package and package not in sys.modules and not _is_extension(sys.modules[name]):
            del sys.modules[name]


def _is_extension(module: ModuleType) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), ExtensionFileLoader)


def _shortage(failure: ImportError) -> OSError | None:
    """Return the lack of a resource that the dynamic loader has told as text."""
    number = next((number for text, number in _SHORTAGES.items() if text in str(failure)), 0)
    return OSError(number, strerror(number)) if number else None
