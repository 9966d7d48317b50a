"""Carry the connections of an inherited listening socket to a port of this process's loopback.

    python -IS forwarder.py DESCRIPTOR PORT

It writes one byte to its standard output when it accepts connections. It imports little, because tests start it hundreds of
times.
"""

import os
import signal
import socket
import sys
import threading
from contextlib import suppress

_CHUNK = 1 << 16


def _carry(source: socket.socket, sink: socket.socket) -> None:
    """Carry the bytes of one direction. Then end the other connection."""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def _serve(inner: socket.socket, port: int) -> None:
    with inner:
        try:
            outer = socket.create_connection(("127.0.0.1", port))
        except OSError:
            return
        with outer:
            back = threading.Thread(target=_carry, args=(outer, inner), daemon=True)
            back.start()
            _carry(inner, outer)
            back.join()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = socket.socket(fileno=int(sys.argv[1]))
    os.write(sys.stdout.fileno(), b"\n")
    while True:
        inner, _ = listening.accept()
        threading.Thread(target=_serve, args=(inner, int(sys.argv[2])), daemon=True).start()


if __name__ == "__main__":
    main()
