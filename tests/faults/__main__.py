"""Kill a node at random: `python -m faults --store etcdv3 --kills 10000 --seed 0 [--troubles]`.

Exit status 1 for a contradiction, 77 if the programs of the datastore are missing.
"""

import argparse
import sys
import time

from faults.bench import ORCH, STORES, Broken, kill_repeatedly, node_on
from harness.kube import why_not_running

NOT_RUN = 77  # as programs that build software know a test that cannot run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--troubles", action="store_true", help="also refuse writes, lose replies, and let the clock jump")
    options = parser.parse_args()
    if options.store == ORCH and (reason := why_not_running()):
        print(f"{options.store}: {reason}", file=sys.stderr)
        return NOT_RUN
    begin = time.monotonic()
    with node_on(options.store, options.seed, with_troubles=options.troubles) as node:
        try:
            kill_repeatedly(node, options.kills, options.seed, with_troubles=options.troubles)
        except Broken as failure:
            print(f"{options.store}: {failure}", file=sys.stderr)
            return 1
        calls = node.ledger.path.read_text().count("? ")
    rate = options.kills / (time.monotonic() - begin)
    print(
        f"{options.store}: {options.kills} kills in {calls} calls, {rate:.1f} kills/s: nothing lost, leaked or assigned twice"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
