"""Lazy imports in a process that continues after a failed import, or after a change of its package.

Python removes a module whose import has failed, but not its submodules that were imported before the failure. If the package is
imported again, it lacks them, because a submodule in `sys.modules` is not bound to its package a second time. So a short lack
of file descriptors during one import would make the package unusable until the process ends.
"""

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Final

import svc
from svc.atomic_file import file_version

SPARE_DESCRIPTORS: Final = 8  # required before an import: an extension module may not load again after a failure

_lock: Final = threading.RLock()
_imported: Final = file_version(svc.__file__)
_SHORTAGES: Final = {os.strerror(number): number for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)}


@contextmanager
def whole_imports() -> Iterator[None]:
    """Import packages in the block, one thread at a time. After a failure their next import starts from the beginning.

    Raise OSError for a lack of file descriptors or memory, even if Python raises ImportError for it.
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


def is_package_changed() -> bool:
    """Return whether the package on disk was replaced or removed since this process imported it."""
    return file_version(svc.__file__) != _imported


def require_descriptors(number: int) -> None:
    """Open and close `number` files. Raise OSError (EMFILE or ENFILE) if that fails."""
    with ExitStack() as opened:
        for _ in range(number):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _remove_orphans() -> None:
    """Remove the submodules of missing packages, except extension modules, because many cannot be loaded twice."""
    for name in sorted(sys.modules):
        package = name.rpartition(".")[0]
        if package and package not in sys.modules and not _is_extension(sys.modules[name]):
            del sys.modules[name]


def _is_extension(module: ModuleType) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), ExtensionFileLoader)


def _shortage(failure: ImportError) -> OSError | None:
    """Return the error for a lack of resources that the dynamic loader reported as text."""
    number = next((number for text, number in _SHORTAGES.items() if text in str(failure)), 0)
    return OSError(number, os.strerror(number)) if number else None
