"""A program of svc with shorter times:

    python short_times.py MODULE:NAME=SECONDS,... PROGRAM ARGUMENTS...

PROGRAM is a module with a `main`, such as svc.controllers.main.
"""

import importlib
import sys


def main() -> int:
    times, program, *sys.argv[1:] = sys.argv[1:]
    for each in times.split(","):
        place, _, seconds = each.partition("=")
        module, _, name = place.partition(":")
        owner = importlib.import_module(module)
        assert isinstance(getattr(owner, name), float), place
        setattr(owner, name, float(seconds))
    return int(importlib.import_module(program).main())


if __name__ == "__main__":
    sys.exit(main())
