"""Entry point of the one-shot process. It writes the signature of svc before it imports other modules."""

import gc
import os
import sys

SIGN = b"svc\n"  # the executable compares these bytes
OPTION = "--signed"


def main() -> int:
    """Carry out one call with `svc.cni.oneshot`. With the option `--signed`, write the signature before any other output."""
    if OPTION in sys.argv:
        sys.argv.remove(OPTION)
        sys.stdout.buffer.write(SIGN)
        sys.stdout.flush()
    prepare_imports()
    from svc.cni.oneshot import main as carry_out

    return carry_out()


def prepare_imports() -> None:
    """Make the imports of a short process cheaper: without garbage collection, and without modules that few calls use."""
    from svc.lazy_modules import postpone

    gc.disable()  # it would look through the same modules again and again: a tenth of the time
    postpone("hashlib", "inspect", "ipaddress", "traceback")


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # otherwise the interpreter frees every object: a tenth of the time
