"""The benchmark: `python -m bench` from the checkout's root, or one module of it, `python -m bench.NAME`.

`-m` puts the checkout itself first on the path, where a `svc` without its compiled core may lie; the installed one is meant.
The harness of the tests takes that place.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

if sys.path and Path(sys.path[0] or ".").resolve() == ROOT:
    del sys.path[0]
sys.path.insert(0, str(ROOT / "tests"))
