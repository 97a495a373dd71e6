"""Reading from and writing into a store, beside what obstore and zarrtraj do there.

``python bench/stores/latencies.py`` starts an S3 server (versitygw if it is installed, else moto)
and, between it and the clients, a process that answers late; prints medians of repeats in turn, for
each latency and number of clients at once, and appends them as JSON lines to
bench-output/stores.jsonl. Server, proxy and clients share this machine's cores: what is compared
goes the same way. The first run of each client counts for nothing: it imports.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))
import adk
from measuring import append_jsonl, summary
from oracles.stores import SERVERS, Between, client, environment, s3_server

CASES = (
    "zarr, opened",
    "zarr, read",
    "zarr, opened and read",
    "zarr, obstore.get_ranges",
    "zarr, converted into the store",
    "zarr, obstore.put",
    "xtc, one frame",
    "xtc, RMSD of C-alpha",
    "Universe over zarr",
)
ZARRTRAJ = "Universe over zarrtraj's own"
MUST = (
    ("zarr, read", "zarr, obstore.get_ranges", 0.9),
    ("zarr, opened and read", "zarr, obstore.get_ranges", 0.9),
    ("zarr, converted into the store", "zarr, obstore.put", 0.8),
    ("Universe over zarr", ZARRTRAJ, 10),
)
"""What is to be so many times as fast as what."""


def between(port: int, latency_s: float, nbytes_per_s: float) -> None:
    """Answer late, until standard input ends (a process of its own); 0 bytes/s have no limit."""
    one = Between(port)
    one.latency_s, one.nbytes_per_s = latency_s, nbytes_per_s or None
    print(one.port, flush=True)
    sys.stdin.read()


@contextmanager
def started(*words: str, **environ: str) -> Iterator[subprocess.Popen]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=os.environ | environ, **pipes) as process:
        try:
            yield process
        finally:
            process.stdin.close()


def said(process: subprocess.Popen, line: str) -> str:
    print(line, file=process.stdin, flush=True)
    found = process.stdout.readline()
    if not found:
        raise RuntimeError("a client ended")
    return found


def timed(clients: list[subprocess.Popen], case: str) -> float:
    """Return the seconds until the last client is done that all began a case together."""
    for one in clients:
        said(one, case)
    for one in clients:
        print(file=one.stdin, flush=True)
    return max(float(one.stdout.readline()) for one in clients)


def measured(
    clients: list[subprocess.Popen], zarrtraj: list[subprocess.Popen], cases: list[str], n: int
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {}
    for _ in range(n + 1):
        for case in cases:
            seconds.setdefault(case, []).append(timed(clients, case))
        if zarrtraj and "Universe over zarr" in cases:
            seconds.setdefault(ZARRTRAJ, []).append(timed(zarrtraj, ZARRTRAJ))
    return {case: some[1:] for case, some in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--between", nargs=3, type=float, help=argparse.SUPPRESS)
    parser.add_argument("--gbit", type=float, default=0, help="of the link; no limit by default")
    parser.add_argument("--latencies-ms", type=float, nargs="+", default=[0, 20, 60])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--copies", type=int, default=60, help="of 98 frames of 3,341 atoms")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--zarrtraj", type=Path, default=Path(".venv-zarrtraj/bin/python"))
    parser.add_argument("-o", type=Path, default=Path("bench-output/stores.jsonl"))
    args = parser.parse_args()
    if args.between:
        between(int(args.between[0]), *args.between[1:])
        return 0
    import mdio

    own = str(Path(__file__).with_name("clients.py"))
    with tempfile.TemporaryDirectory() as name, s3_server(SERVERS[-1], Path(name, "s3")) as port:
        folder = Path(name, "made")
        folder.mkdir()
        (folder / "md.xtc").hardlink_to(adk.tiled(Path(name), args.copies))
        n = mdio.open(folder / "md.xtc").info.n_frames
        raw = {"precision": "none", "compression": "none"}
        mdio.convert(folder / "md.xtc", folder / "md.zarr", **raw)
        peer = str(args.zarrtraj) if args.zarrtraj.exists() else None
        if peer is None:
            print(f"{args.zarrtraj} is not there (make peers): zarrtraj is left out")
        else:
            subprocess.run([peer, own, "write", str(folder)], check=True)
        for path in folder.rglob("*"):
            if path.is_file():
                client(port).upload_file(str(path), "bucket", str(path.relative_to(folder)))
        nbytes = sum(path.stat().st_size for path in (folder / "md.zarr").rglob("c.*"))
        load = os.getloadavg()[0]
        print(f"{n} frames, zarr {nbytes / 1e6:.0f} MB, {SERVERS[-1]}, load {load:.1f}")
        for latency_ms in args.latencies_ms:
            limits = (latency_ms / 1e3, args.gbit * 125e6)
            words = (sys.executable, __file__, "--between", str(port), *map(str, limits))
            for n_clients in args.clients:
                with ExitStack() as stack:
                    proxy = stack.enter_context(started(*words))
                    where = environment(int(proxy.stdout.readline()))
                    starts = {"mdio": sys.executable, **({"zarrtraj": peer} if peer else {})}
                    clients: dict[str, list[subprocess.Popen]] = {"zarrtraj": []}
                    for kind, python in starts.items():
                        clients[kind] = [
                            stack.enter_context(started(python, own, kind, str(folder), **where))
                            for _ in range(n_clients)
                        ]
                    found = measured(clients["mdio"], clients["zarrtraj"], args.cases, args.repeats)
                link = f", {args.gbit:g} Gbit/s" if args.gbit else ""
                told = f"{latency_ms:3.0f} ms{link}, {n_clients} at once"
                rows = [{"case": case, **summary(some)} for case, some in found.items()]
                for row in rows:
                    print(f"{told}  {row['case']:32} {row['median']:8.3f} s", flush=True)
                for case, beside, must in MUST:
                    if case in found and beside in found:
                        paired = zip(found[beside], found[case], strict=True)
                        gain = statistics.median(b / a for b, a in paired)
                        word = "reached" if gain >= must else "missed"
                        print(f"{told}  {case} beside {beside}: {gain:.2f} ({must}): {word}")
                what = {"latency_ms": latency_ms, "clients": n_clients, "n_frames": n}
                what["gbit"] = args.gbit
                append_jsonl(args.o, [{**row, **what, "nbytes": nbytes} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
