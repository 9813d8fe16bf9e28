"""Ten times the rows with the same steps: time per row, and what the driver's memory grows by.

    python benchmarks/scale.py [--rows 1000000] [--features 16] [--rounds 3]

*seconds_per_row*: of ``fit`` in process, over that with a tenth of the rows. *driver_bytes_per_row*: growth of the
driver process's peak of private memory from one to the other, with the θ side in two processes of its own; *exact*
with sorted scores, *binned* with ``exactRows=0``. *two_processes*: the time of such a fit over that in process, at the
larger size, launch included. Every fit runs in a new driver process. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fit import write
from benchmarks.session import session
from benchmarks.sparse import peaks
from bspauc_spark import BSPAUCClassifier


def fit(path: str, processes: int, exact_rows: int, rounds: int) -> dict[str, float]:
    """Seconds of a fit, and by how many bytes this process's peak memory exceeds what it was after a small fit."""
    spark = session()
    frame = spark.read.parquet(path)
    estimator = BSPAUCClassifier(verbose=False, rounds=rounds, numProcesses=processes, exactRows=exact_rows)
    estimator.fit(frame.limit(20_000))
    with peaks("RssAnon", children=False) as before:
        time.sleep(0.5)
    began = time.perf_counter()
    with peaks("RssAnon", children=False) as during:
        estimator.fit(frame)
    took = time.perf_counter() - began
    spark.stop()
    return {"seconds": took, "bytes": max(during.values()) - max(before.values())}


def in_new_process(path: Path, processes: int, exact_rows: int, rounds: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(path), str(processes), str(exact_rows), str(rounds)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = (args.rows, 10 * args.rows)
    cases = {"in process": (0, 50_000_000), "exact": (2, 50_000_000), "binned": (2, 0)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        for count in rows:
            path = Path(folder) / f"{count}.parquet"
            write(path, count, args.features)
            for name, (processes, exact_rows) in cases.items():
                found[name].append(in_new_process(path, processes, exact_rows, args.rounds))
    few, many = found["in process"]
    growth = {
        name: round((found[name][1]["bytes"] - found[name][0]["bytes"]) / (rows[1] - rows[0]), 2)
        for name in ("exact", "binned")
    }
    ratio = many["seconds"] / few["seconds"] / 10
    two = found["exact"][1]["seconds"] / many["seconds"]
    line = {"seconds_per_row": round(ratio, 2), "driver_bytes_per_row": growth, "two_processes": round(two, 2)}
    print(json.dumps({**line, "all": found}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        path, *numbers = sys.argv[2:]
        print(json.dumps(fit(path, *map(int, numbers))))
    else:
        main()
