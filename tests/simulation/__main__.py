"""`python -m simulation`: explore schedules, or replay one. See README.md."""

import sys

from simulation.command import main

if __name__ == "__main__":
    sys.exit(main())
