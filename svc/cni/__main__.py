"""Entry point of the one-shot process. It writes the signature of svc before it imports other modules."""

import atexit
import gc
import sys

SIGN = b"svc\n"  # the executable compares these bytes
OPTION = "--signed"


def main() -> int:
    """Carry out one call with `svc.cni.oneshot`. With the option `--signed`, write the signature before any other output."""
    if OPTION in sys.argv:
        sys.argv.remove(OPTION)
        sys.stdout.buffer.write(SIGN)
        sys.stdout.flush()
    atexit.register(gc.freeze)  # otherwise the end of the process traverses all objects: 40 of 200 ms
    from svc.cni.oneshot import main as carry_out

    return carry_out()


if __name__ == "__main__":
    sys.exit(main())
