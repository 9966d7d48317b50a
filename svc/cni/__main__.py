"""What the executable runs where no agent answers. It says that it is svc before it loads the rest."""

import sys

SIGN = b"svc\n"  # as the executable knows it
OPTION = "--signed"


def main() -> int:
    """Carry out one call as `svc.cni.oneshot`; with the option, write the sign before everything else."""
    if OPTION in sys.argv:
        sys.argv.remove(OPTION)
        sys.stdout.buffer.write(SIGN)
        sys.stdout.flush()
    from svc.cni.oneshot import main as carry_out

    return carry_out()


if __name__ == "__main__":
    sys.exit(main())
