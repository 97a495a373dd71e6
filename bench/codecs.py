"""Bytes and time of positions at one error: the codecs of Zarr's integers beside XTC and others.

Each system is an XTC; its own integers are encoded in chunks of up to 64 frames, decoded again and
compared. What the numbers hold at least is estimated from order-0 entropies. Times are CPU time of
this process, of runs in turn on one core; libmdaxdr reads the XTC from the page cache::

    python bench/codecs.py                         # ADK, and ADK in water (47,681 atoms)
    python bench/codecs.py FILE.xtc FILE.xtc:10    # other files, and every tenth frame of one
    python bench/codecs.py --sz3 PATH/sz3          # SZ3's ALGO_BIOMD and ALGO_BIOMDXTC too
    python bench/codecs.py --mdz PATH/mdz          # MDZ, which SZ3 builds with -DBUILD_MDZ=ON
    python bench/codecs.py --chunk-frames 10       # shorter chunks than of 64 frames

SZ3 gets all frames at once, MDZ as many as a chunk has, each axis by itself. Of SZ3 4359047 MDZ's
program prints the room that it had for its output as that output's size: `mdz.hpp` has to say
``compressed_size = sz->compress(`` three times. What it takes to write is that to read, too.

``--json`` prints one JSON object a line. A frame is the mean of eight all over a chunk, each read
by itself; a tenth, the first tenth of the atoms in all its frames, for each of them; few, 209 of
the first 3,341 atoms.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from adk import tiled
from measuring import provenance
from numcodecs import blosc
from numpy.typing import NDArray

import mdio
from mdio.layouts.codecs.quantised import QuantisedFormat, decode_chunk, encode_chunk

CODECS = ("rigid", "rigid-seek", "bitpack", "zstd", "lz4")
FRAMES = 64
Floats = NDArray[np.float32]


def entropy(numbers: NDArray[Any]) -> float:
    """Return bits a number: of the high bits if there are too few numbers for their low ones."""
    spread = 1.5 * float(np.median(np.abs(numbers - np.median(numbers))))
    low = max(0, int(np.log2(max(spread / 12, 1))))
    counts = np.unique(numbers >> low, return_counts=True)[1]
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum()) + low


def estimates(x: NDArray[np.int32]) -> dict[str, float]:
    """Return bits an atom of plain differences: along frames, along atoms, along both."""
    moved, apart = np.diff(x, axis=0), np.diff(x, axis=1)
    found = {"along frames": moved, "along atoms": apart, "both": np.diff(moved, axis=1)}
    bits = {name: sum(entropy(d[..., axis]) for axis in range(3)) for name, d in found.items()}
    return {name: round(value, 2) for name, value in bits.items()}


def cpu(work: Callable[[], Any], repeats: int) -> float:
    """Return the least CPU seconds of some runs."""
    best = np.inf
    for _ in range(repeats):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def our_codecs(
    x: Floats, precision: float, repeats: int, chunk_frames: int
) -> list[dict[str, Any]]:
    """Return bytes and seconds of each codec; raises ValueError if a number comes back wrong."""
    rows = []
    parts = [x[first : first + chunk_frames] for first in range(0, len(x), chunk_frames)]
    out = np.empty_like(parts[0])
    for name in CODECS:
        form = QuantisedFormat(precision, "xtc", name)
        chunks = [encode_chunk(part, form) for part in parts]
        for part, chunk in zip(parts, chunks, strict=True):
            decode_chunk(memoryview(chunk), part.shape[:2], out[: len(part)])
            if not np.array_equal(out[: len(part)], part):
                raise ValueError(f"{name} does not give the numbers back")

        def read(chunks: list[bytes] = chunks) -> None:
            for part, chunk in zip(parts, chunks, strict=True):
                decode_chunk(memoryview(chunk), part.shape[:2], out[: len(part)])

        def write(form: QuantisedFormat = form) -> None:
            for part in parts:
                encode_chunk(part, form)

        def some(first: int, last: int, atoms: Any, data: bytes = chunks[0]) -> Callable[[], None]:
            wanted = np.empty((last - first, x.shape[1] if atoms is None else len(atoms), 3), "f4")
            chunk, shape = memoryview(data), parts[0].shape[:2]
            return lambda: decode_chunk(chunk, shape, wanted, atoms, first, last)

        nbytes, n = sum(map(len, chunks)), len(parts[0])
        row = {"codec": name, "nbytes": nbytes, "read_s": cpu(read, repeats)}
        tenth = np.arange(x.shape[1] // 10)
        single = [some(f, f + 1, None) for f in (n * (2 * np.arange(8) + 1) // 16).tolist()]
        row["frame_us"] = 1e6 * sum(cpu(work, repeats) for work in single) / len(single)
        few = np.linspace(0, min(x.shape[1], 3341) - 1, 209).astype(np.int64)
        row["tenth_us"] = 1e6 * cpu(some(0, n, tenth), repeats) / n
        row["few_us"] = 1e6 * cpu(some(0, n, few), repeats) / n
        rows.append(row | {"write_s": cpu(write, max(1, repeats // 3))})
    return rows


def shuffled(x: Floats, step: float, repeats: int, chunk_frames: int) -> dict[str, Any]:
    """Return what Blosc's zstd makes of rounded floats, shuffled: Zarr without a codec of ours."""
    rounded = np.rint(x / np.float32(step)).astype(np.float32) * np.float32(step)
    parts = [rounded[first : first + chunk_frames] for first in range(0, len(x), chunk_frames)]

    def write() -> list[bytes]:
        return [blosc.compress(part, b"zstd", 5, shuffle=1, typesize=4) for part in parts]

    packed = write()
    read_s = cpu(lambda: [blosc.decompress(one) for one in packed], repeats)
    write_s = cpu(write, max(1, repeats // 3))
    nbytes = sum(map(len, packed))
    return {"codec": "floats, blosc-zstd", "nbytes": nbytes, "read_s": read_s, "write_s": write_s}


def mdz(x: Floats, step: float, program: str, folder: Path, chunk_frames: int) -> dict[str, Any]:
    """Return what MDZ makes of it, choosing by itself, at half a step of absolute error.

    Raises subprocess.CalledProcessError; ValueError for a larger error.
    """
    nbytes, begun = 0.0, os.times().children_user
    for axis in range(3):
        x[..., axis].tofile(folder / "axis.f32")
        shape = ["-2", str(len(x)), str(x.shape[1]), "-a", str(step / 2), str(chunk_frames)]
        words = [program, str(folder / "axis.f32"), *shape]
        told = subprocess.run(words, capture_output=True, check=True, text=True).stdout
        said = dict(re.findall(r"^(.+?) ?= ?([-+.0-9eE]+)$", told, re.MULTILINE))
        if float(said["Max absolute error"]) > 0.51 * step:
            raise ValueError(f"MDZ's error is {said['Max absolute error']}, not {step / 2}")
        nbytes += x[..., axis].nbytes / float(said["Compression ratio"])
    return {"codec": "MDZ", "nbytes": nbytes, "write_s": os.times().children_user - begun}


def sz3(x: Floats, step: float, program: str, folder: Path) -> list[dict[str, Any]]:
    """Return what SZ3's two algorithms for molecules make of it at half a step of absolute error.

    Raises subprocess.CalledProcessError.
    """
    source, packed, config = folder / "x.f32", folder / "x.sz", folder / "sz3.config"
    x.tofile(source)
    rows = []
    for name in ("ALGO_BIOMD", "ALGO_BIOMDXTC"):
        config.write_text(f"[GlobalSettings]\nCmprAlgo = {name}\n")
        shape = ["-3", "3", str(x.shape[1]), str(len(x)), "-c", str(config)]
        files = ["-f", "-i", str(source), "-z", str(packed)]
        bound = ["-M", "ABS", str(step / 2)]
        subprocess.run([program, *files, *shape, *bound], capture_output=True, check=True)
        rows.append({"codec": f"SZ3 {name}", "nbytes": packed.stat().st_size})
    return rows


def study(name: str, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a system."""
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile

    path, _, every = name.partition(":")
    with mdio.open(path) as layout:
        x = layout.read(0, layout.info.n_frames).positions[:: int(every or 1)].copy()
        precision = layout.info.precision
    n = x.shape[0] * x.shape[1]
    with XTCFile(path) as theirs:
        n_frames = len(theirs)

        def their_way() -> None:
            theirs.seek(0)
            for _ in range(n_frames):
                theirs.read()

        read_s = cpu(their_way, args.repeats) * len(x) / n_frames
    with mdio.open(path) as layout:
        ours_s = cpu(lambda: layout.read(0, n_frames), args.repeats) * len(x) / n_frames
    xtc_nbytes = Path(path).stat().st_size * len(x) / n_frames
    rows = [{"codec": "XTC, libmdaxdr", "nbytes": xtc_nbytes, "read_s": read_s}]
    rows += [{"codec": "XTC, mdio", "nbytes": xtc_nbytes, "read_s": ours_s}]
    rows += our_codecs(x, precision, args.repeats, args.chunk_frames)
    rows += [shuffled(x, precision, args.repeats, args.chunk_frames)]
    if args.sz3:
        rows += sz3(x, precision, args.sz3, folder)
    if args.mdz:
        rows += [mdz(x, precision, args.mdz, folder, args.chunk_frames)]
    integers = np.rint(x[:FRAMES] / precision).astype(np.int32)
    for what, bits in estimates(integers).items():
        rows.append({"codec": f"entropy {what}", "nbytes": bits * n / 8})
    for row in rows:
        row["system"], row["n_frames"], row["n_atoms"] = Path(name).name, *x.shape[:2]
        row["bits_per_atom"], row["share"] = 8 * row["nbytes"] / n, row["nbytes"] / xtc_nbytes
        for way in ("read", "write"):
            if f"{way}_s" in row:
                row[f"{way}_ns"] = 1e9 * row.pop(f"{way}_s") / n
        row["gain"] = 1e9 * read_s / n / row["read_ns"] if "read_ns" in row else None
    return rows


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--chunk-frames", type=int, default=FRAMES, help="of each chunk, at most")
    parser.add_argument("--sz3", help="SZ3's program")
    parser.add_argument("--mdz", help="MDZ's program")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        files = args.files
        if not files:
            from MDAnalysisTests.datafiles import XTC

            files = [str(tiled(Path(temporary), 1)), str(XTC)]
        for name in files:
            rows = study(name, args, Path(temporary))
            if args.json:
                for row in rows:
                    print(json.dumps(row | provenance()))
                continue
            print(
                f"{Path(name).name}: {rows[0]['n_frames']} frames of {rows[0]['n_atoms']:,} atoms"
            )
            print(
                f"  {'':24}{'bits/atom':>10}{'of XTC':>8}{'read ns':>9}{'gain':>7}{'write ns':>10}"
            )
            for row in rows:
                numbers = [("bits_per_atom", 10, 2), ("share", 8, 3), ("read_ns", 9, 1)]
                numbers += [("gain", 7, 1), ("write_ns", 10, 1), ("frame_us", 10, 0)]
                numbers += [("tenth_us", 10, 1), ("few_us", 8, 1)]
                cells = [
                    f"{row[key]:>{width}.{digits}f}" if row.get(key) is not None else " " * width
                    for key, width, digits in numbers
                ]
                print(f"  {row['codec']:24}{''.join(cells)}")


if __name__ == "__main__":
    main()
