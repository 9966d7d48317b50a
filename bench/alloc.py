"""Profile allocations of addresses in one process, on each datastore.

time         an allocation, a release, their phases, requests and conflicts
allocations  how often memory is allocated, by Python and by malloc, and where
flame        a flame graph, with the functions of the compiled core, which is built once more, with symbols, in build/symbols
lines        each line of the compiled core, which is built once more, with line tracing, in build/linetrace
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import ROOT
from bench.arguments import number, whole
from bench.environment import environment, words
from bench.ipam_load import STORES
from bench.measurement import Figure, cell
from bench.other_build import with_line_tracing, with_symbols
from bench.results import Json, create, write_line
from bench.table import text_table

FOLDER = ROOT / "build" / "alloc"
PARTS = ("time", "allocations", "flame", "lines")
_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # a build has an environment without programs of libraries
_BUILDS = {"flame": with_symbols, "lines": with_line_tracing}


def main(arguments: Sequence[str]) -> int:
    from bench.alloc_work import Load

    options = _parser(Load()).parse_args(arguments)
    loads = [
        Load(
            store, options.pools, options.blocks, options.block_size, options.fill, options.threads, options.nodes,
            options.release, options.held, options.rounds,
        )
        for store in options.store
    ]  # fmt: skip
    if wrong := next(filter(None, map(_error, loads)), ""):
        _parser(Load()).error(wrong)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _parser(Load()).error(f"argument --output: {error}: name a folder that can be written")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the parts are torn down
    found, figures, missing = environment(), list[Figure](), list[str]()
    with create(options.json, found) as sink:
        print(words(found))
        write_line([sink], {"environment": found})
        for load in loads:
            for part in options.parts:
                for line in _lines(part, options.output, asdict(load)):
                    write_line([sink], {"case": f"alloc {part}", **line})
                    if "missing" in line or "failed" in line:
                        missing += line.values()
                    else:
                        figures.append(Figure.of_json(line))
    print(f"\n{_table(figures)}\n\nresults: {sink.name}; pictures and lists: {options.output}")
    for text in missing:
        print(f"left out: {text}", file=sys.stderr)
    return 1 if missing else 0


def _lines(part: str, folder: Path, load: Json) -> Iterator[Json]:
    """Run a part in a process of its own, and yield its lines."""
    python = str(_BUILDS[part]()) if part in _BUILDS else sys.executable
    reader, writer = os.pipe()
    command = [python, "-m", "bench.alloc_work", part, str(writer), str(folder), json.dumps(load)]
    with os.fdopen(reader) as lines:
        process = subprocess.Popen(command, pass_fds=[writer], cwd=ROOT, env=os.environ | {"PATH": _PATH})
        os.close(writer)
        try:
            yield from map(json.loads, lines)
            status = process.wait()
        finally:
            process.terminate()
            process.wait()
    if status:
        yield {"failed": f"{part} on {load['store']}: the process ended with status {status}"}


def _table(figures: Sequence[Figure]) -> str:
    rows = [
        (
            str(figure.parameters["store"]),
            figure.name,
            str(figure.parameters.get("phase", figure.parameters.get("of", ""))),
            cell(figure.ours.p50),
            cell(figure.ours.p95),
            figure.unit,
            figure.note,
        )
        for figure in figures
    ]
    return text_table([("store", "figure", "", "median", "95 %", "unit", ""), *rows], right={3, 4})


def _error(load: object) -> str:
    """Return why a load is impossible; empty if it is possible."""
    from bench.alloc_work import Load

    assert isinstance(load, Load)
    if load.nodes + load.blocks > load.blocks_of_pool:
        return f"a pool has {load.blocks_of_pool} blocks of this size: fewer --nodes and --blocks, or smaller blocks"
    if load.release == "none" and load.rounds * load.threads > load.room:
        return "without releases the pool is exhausted: fewer --rounds or --threads"
    if load.threads * (load.held + 10) > load.free:
        return "the threads hold more addresses than the pool has: fewer --held or --threads"
    if load.store == "embedded" and load.nodes > 1:
        return "the embedded store is of one node: set --nodes 1, or another --store"
    return ""


def _parser(default: object) -> argparse.ArgumentParser:
    from bench.alloc_work import RELEASES, Load

    assert isinstance(default, Load)
    parser = argparse.ArgumentParser(
        prog="python -m bench alloc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=STORES, default=STORES, help="(all)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:3], help="(all but lines)")
    parser.add_argument("--pools", type=whole(1, 512), default=default.pools, help="at most 512 (%(default)s)")
    parser.add_argument("--blocks", type=whole(0), default=default.blocks, help="of other nodes, in each pool (%(default)s)")
    length = "prefix length, 20 to 30 (%(default)s)"
    parser.add_argument("--block-size", type=whole(20, 30), default=default.block_size, metavar="LENGTH", help=length)
    parser.add_argument(
        "--fill", type=number(0, 1), default=default.fill, help="used share of the node's block, 0 to 1 (%(default)s)"
    )
    parser.add_argument("--threads", type=whole(1), default=default.threads, help="that allocate at once (%(default)s)")
    parser.add_argument("--nodes", type=whole(1), default=default.nodes, help="on which they do (%(default)s)")
    which = "which address a thread releases after an allocation: its newest, its oldest, any, none (%(default)s)"
    parser.add_argument("--release", choices=RELEASES, default=default.release, help=which)
    parser.add_argument("--held", type=whole(0), default=default.held, help="addresses that a thread keeps (%(default)s)")
    parser.add_argument("--rounds", type=whole(1), default=default.rounds, help="allocations of each thread (%(default)s)")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER", help="(build/alloc)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, and not to bench-results/")
    return parser
