"""A program of svc that kills itself at a given point:

    python kill_point.py MODULE:FUNCTION before|after PROGRAM ARGUMENTS...

PROGRAM is a module with a `main`, such as svc.agent.main.
"""

import importlib
import os
import signal
import sys
from typing import Any


def main() -> int:
    point, when, program, *sys.argv[1:] = sys.argv[1:]
    arm_kill_point(point, after=when == "after")
    return int(importlib.import_module(program).main())


def arm_kill_point(point: str, *, after: bool) -> None:
    module, _, path = point.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    original = getattr(owner, name)

    def deadly(*arguments: Any, **options: Any) -> None:
        if after:
            original(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, deadly)


if __name__ == "__main__":
    sys.exit(main())
