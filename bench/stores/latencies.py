"""Reading from and writing into a store, beside what obstore does with the same bytes.

``python bench/stores/latencies.py`` starts an S3 server (versitygw if it is installed, else moto)
and, between it and mdio, a process that answers late; prints medians of repeats in turn, for each
latency, and appends them as JSON lines to bench-output/stores.jsonl. Server, proxy and client share
this machine's cores: what is compared goes the same way.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))
import adk
from measuring import append_jsonl, in_turn, summary
from oracles.stores import SERVERS, Between, client, environment, s3_server

PARTS = 16
RANGE_NBYTES = 4 << 20
numbers = count()


def between(port: int, latency_s: float) -> None:
    """Answer late, until standard input ends (a process of its own)."""
    one = Between(port)
    one.latency_s = latency_s
    print(one.port, flush=True)
    sys.stdin.read()


def cases(folder: Path, n: int) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name; objects are there already."""
    import obstore
    from obstore.store import from_url

    import mdio
    from mdio.core.blocks import aligned_blocks

    store = from_url("s3://bucket", client_options={"allow_http": True})
    tree = folder / "md.zarr"
    shards = [p for p in tree.rglob("*") if p.is_file() and p.stat().st_size > RANGE_NBYTES // 4]

    def ranges(path: Path) -> None:
        nbytes = path.stat().st_size
        starts = list(range(0, nbytes, RANGE_NBYTES))
        ends = [min(start + RANGE_NBYTES, nbytes) for start in starts]
        obstore.get_ranges(store, str(path.relative_to(folder)), starts=starts, ends=ends)

    def get_ranges() -> None:
        with ThreadPoolExecutor(PARTS) as pool:
            list(pool.map(ranges, shards))

    def put() -> None:
        number = next(numbers)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda p: obstore.put(store, f"put{number}/{p.name}", p), shards))

    def read() -> None:
        with mdio.open("s3://bucket/md.zarr") as layout:
            blocks = aligned_blocks(layout.boundaries(), range(layout.info.n_frames), 40)
            layout.expect([(block.start, block.stop) for block in blocks])
            for block in blocks:
                layout.read(block.start, block.stop)

    def opened() -> None:
        with mdio.open("s3://bucket/md.zarr") as layout:
            _ = layout.info

    xtc = mdio.open("s3://bucket/md.xtc")
    _ = xtc.info
    frames = iter([7919 * k % n for k in range(10**6)])

    def rmsd() -> None:
        kernel = mdio.RMSD("name CA")
        mdio.analyze("s3://bucket/md.xtc", kernel=kernel, top=str(adk.topology()))

    def convert() -> None:
        raw = {"precision": "none", "compression": "none"}
        mdio.convert(folder / "md.xtc", f"s3://bucket/out{next(numbers)}.zarr", **raw)

    return {
        "zarr, opened": opened,
        "zarr, read": read,
        "zarr, obstore.get_ranges": get_ranges,
        "zarr, converted into the store": convert,
        "zarr, obstore.put": put,
        "xtc, one frame": lambda: xtc.read(at := next(frames), at + 1),
        "xtc, RMSD of C-alpha": rmsd,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--between", nargs=2, type=float, help=argparse.SUPPRESS)
    parser.add_argument("--latencies-ms", type=float, nargs="+", default=[0, 20, 60])
    parser.add_argument("--copies", type=int, default=20, help="of 98 frames of 3,341 atoms")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", type=Path, default=Path("bench-output/stores.jsonl"))
    args = parser.parse_args()
    if args.between:
        between(int(args.between[0]), args.between[1])
        return 0
    import mdio
    from mdio.core.files.remote import objects

    with tempfile.TemporaryDirectory() as name, s3_server(SERVERS[-1], Path(name, "s3")) as port:
        folder = Path(name, "made")
        folder.mkdir()
        source = adk.tiled(Path(name), args.copies)
        (folder / "md.xtc").write_bytes(source.read_bytes())
        n = mdio.open(folder / "md.xtc").info.n_frames
        raw = {"precision": "none", "compression": "none"}
        mdio.convert(folder / "md.xtc", folder / "md.zarr", **raw)
        for path in folder.rglob("*"):
            if path.is_file():
                client(port).upload_file(str(path), "bucket", str(path.relative_to(folder)))
        nbytes = sum(path.stat().st_size for path in (folder / "md.zarr").rglob("c.*"))
        print(f"{n} frames, zarr {nbytes / 1e6:.0f} MB, {SERVERS[-1]}, load {os.getloadavg()[0]}")
        for latency_ms in args.latencies_ms:
            words = [sys.executable, __file__, "--between", str(port), str(latency_ms / 1e3)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen(words, **pipes) as proxy:
                os.environ.update(environment(int(proxy.stdout.readline())))
                objects._store.cache_clear()
                time.sleep(2 * objects.KNOWN_S)
                found = in_turn(cases(folder, n), args.repeats)
                proxy.stdin.close()
            rows = [{"case": c, "latency_ms": latency_ms, **summary(s)} for c, s in found.items()]
            for row in rows:
                print(f"{latency_ms:5.0f} ms  {row['case']:32} {row['median']:8.3f} s", flush=True)
            append_jsonl(args.o, [{**row, "n_frames": n, "nbytes": nbytes} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
