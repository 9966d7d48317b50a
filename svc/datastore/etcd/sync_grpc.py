"""gRPC without its asynchronous half, which svc does not use: it imports asyncio, and takes 3 MiB and 30 ms.

Threads that wait in gRPC wake up by themselves: one that waits for the next message of a stream 10 times a second, that of a
channel 5 times. They do it to run the handlers of signals, which only the main thread does. In a process at rest this is most
of the processor time. gRPC has no option for it. The first period is a variable of its Python part; its Cython part exports
the other one to Cython modules.
"""

import logging
from typing import Final

from svc.lazy_modules import postpone

postpone("asyncio", "grpc.aio")
vars(logging)["logAsyncioTasks"] = False  # from Python 3.12 on, each log record would ask asyncio for the name of its task

import grpc  # noqa: E402  after the modules that it would import
from grpc import _common  # noqa: E402
from grpc._cython import cygrpc  # noqa: E402

__all__ = ["grpc", "wake_up_every"]

_OF_STREAMS: Final = "MAXIMUM_WAIT_TIMEOUT"
_OF_CHANNELS: Final = "g_interrupt_check_period_ms"
_TYPE: Final = b"int"


def wake_up_every(seconds: float) -> tuple[bool, bool]:
    """Set the time between two wake-ups of a thread, for waits that begin from now on.

    Return whether this release of gRPC has the variables of streams and of channels."""
    has_streams = hasattr(_common, _OF_STREAMS)
    if has_streams:
        setattr(_common, _OF_STREAMS, seconds)
    return has_streams, _set_channels(round(seconds * 1000))


def _set_channels(milliseconds: int) -> bool:
    import ctypes  # only resident programs need it

    capsule = getattr(cygrpc, "__pyx_capi__", {}).get(_OF_CHANNELS)
    if capsule is None:
        return False
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        address = pointer_of(capsule, _TYPE)
    except ValueError:  # another type
        return False
    ctypes.c_int.from_address(address).value = milliseconds
    return True
