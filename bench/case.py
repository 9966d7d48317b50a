"""Run one measurement, for `python -m bench`, which starts this program for each: nothing of one is left in the next."""

import json
import os
import sys

from bench.cases import CASES
from bench.measurement import Missing
from bench.options import Options
from bench.signals import tear_down_at_signals
from bench.testbed import Failed


def main() -> None:
    """Write a JSON line for each figure to a descriptor. The arguments are the name, the descriptor, and the options."""
    name, descriptor, options = sys.argv[1:]
    tear_down_at_signals()
    with open(int(descriptor), "w") as sink:
        try:
            _require_root(name)
            for figure in CASES[name].run(Options.of_json(json.loads(options))):
                print(json.dumps(figure.to_json()), file=sink, flush=True)
        except (Missing, Failed) as what:
            print(json.dumps({type(what).__name__.lower(): f"{name}: {what}"}), file=sink)


def _require_root(name: str) -> None:
    if CASES[name].needs_root and os.geteuid() != 0:
        raise Missing("needs root: it makes network namespaces")


if __name__ == "__main__":
    main()
