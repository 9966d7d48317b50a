"""How often threads that wait in gRPC wake up by themselves.

A thread that waits for the next message of a stream does it 10 times a second, the thread of a channel 5 times, to run the
handlers of signals, which only the main thread does. In a process at rest this is most of the processor time. gRPC has no
option for it. The first period is a variable of its Python part; its Cython part exports the other one to Cython modules.
"""

import ctypes
from typing import Final

_OF_STREAMS: Final = "MAXIMUM_WAIT_TIMEOUT"
_OF_CHANNELS: Final = "g_interrupt_check_period_ms"
_TYPE: Final = b"int"


def wake_up_every(seconds: float) -> tuple[bool, bool]:
    """Set the time between two wake-ups of a thread, for waits that begin from now on.

    Return whether this release of gRPC has the variables of streams and of channels."""
    from grpc import _common  # loaded by the connection

    has_streams = hasattr(_common, _OF_STREAMS)
    if has_streams:
        setattr(_common, _OF_STREAMS, seconds)
    return has_streams, _set_channels(round(seconds * 1000))


def _set_channels(milliseconds: int) -> bool:
    from grpc._cython import cygrpc

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
