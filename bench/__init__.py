"""The benchmark: `python -m bench` from the checkout's root, or one module of it, `python -m bench.NAME`.

`-m` puts the checkout first on the path, where `svc` may lack its compiled core. The installed package must be used instead, so
the harness of the tests replaces that entry.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

if sys.path and Path(sys.path[0] or ".").resolve() == ROOT:
    del sys.path[0]
sys.path.insert(0, str(ROOT / "tests"))
