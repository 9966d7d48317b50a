"""Commands of the benchmark: `python -m bench COMMAND --help`. Without a command, `run`.

run      measure svc beside its peers and its goals
compare  compare two runs, or folders of runs
plots    measure the curves of docs/benchmarks.md, draw them, and write the page's tables
page     write the tables of docs/benchmarks.md from results
alloc    profile allocations of addresses
"""

import os
import sys
from importlib import import_module

COMMANDS = {"run": "runs", "compare": "compare", "plots": "plots", "page": "page", "alloc": "alloc"}


def main() -> int:
    """Run the command. Import it alone: the libraries of the others may be missing."""
    name, *rest = sys.argv[1:] or ["run"]
    if name in ("-h", "--help"):
        print(__doc__)
    elif name not in COMMANDS and not name.startswith("-"):
        print(
            f"python -m bench: {name!r} is not a command: name one of {', '.join(COMMANDS)}, or only options", file=sys.stderr
        )
        return 2
    if name not in COMMANDS:
        name, rest = "run", sys.argv[1:]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed svc has its bytecode: a start must not compile it each time
    try:
        status: int = import_module(f"bench.{COMMANDS[name]}").main(rest)
    except KeyboardInterrupt:
        print("interrupted: a file of results has what was measured before", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
