"""Seeds for the fuzz targets, from the real trajectories of MDAnalysisTests.

``python tests/fuzz/seeds.py FOLDER`` fills ``FOLDER/xtc``, ``FOLDER/codecs`` and
``FOLDER/kernels``. The first byte of a seed chooses what the target does with the others; see the
targets.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from MDAnalysisTests import datafiles

from mdio.core import kernels
from mdio.core import xtc as xtc_codec
from mdio.layouts.registry import open_layout

FILES = ("XTC", "XTC_sub_sol", "COORDINATES_XTC", "XTC_multi_frame")
ATOMS = (3, 12, 60, 300)
PRECISIONS = (10.0, 1000.0, 1e5)
FRAME, FILE, ROUND_TRIP = 0, 1, 2


def xtc_seeds(folder: Path) -> None:
    """Write frames and short files: whole ones, and few atoms of them encoded again."""
    for name in FILES:
        path = Path(getattr(datafiles, name))
        index = xtc_codec.scan(path)
        raw = path.read_bytes()
        frame = raw[: index.frame_nbytes[0]]
        if len(frame) < 100_000:
            (folder / f"{name}.frame").write_bytes(bytes([FRAME]) + frame)
            (folder / f"{name}.file").write_bytes(bytes([FILE]) + raw[: 2 * len(frame)])
        with open_layout(path) as layout:
            block = layout.read(0, min(2, layout.info.n_frames))
        vectors = np.tile(np.eye(3, dtype=np.float32), (block.n_frames, 1, 1))
        for n_atoms in ATOMS:
            x = block.positions[:, :n_atoms]
            for precision in PRECISIONS:
                data = xtc_codec.encode(x, vectors, block.time, block.step, precision)
                stem = f"{name}-{n_atoms}-{precision:g}"
                half = len(data) // block.n_frames
                (folder / f"{stem}.frame").write_bytes(bytes([FRAME]) + data[:half])
                (folder / f"{stem}.file").write_bytes(bytes([FILE]) + data)
            floats = bytes([ROUND_TRIP, 2, 0]) + (x[0] / 10).astype("<f4").tobytes()
            (folder / f"{name}-{n_atoms}.floats").write_bytes(floats)
            jumps = np.clip(np.diff(x[0], axis=0) * 1000, -32000, 32000).astype("<i2")
            (folder / f"{name}-{n_atoms}.jumps").write_bytes(
                bytes([ROUND_TRIP, 2, 1]) + jumps.tobytes()
            )


def codec_seeds(folder: Path) -> None:
    """Write chunks of positions, as floats and as folded differences."""
    with open_layout(datafiles.XTC) as layout:
        block = layout.read(0, 4)
    for n_atoms in (1, 7, 40):
        x = np.ascontiguousarray(block.positions[:, :n_atoms])
        for target in (2, 3):
            head = bytes([target, n_atoms - 1, 6])
            (folder / f"floats-{target}-{n_atoms}").write_bytes(head + x.tobytes())
        deltas = kernels.quantise(x, 0.01)
        assert deltas is not None
        for target, kind in ((0, np.uint16), (1, np.uint32)):
            folded = kernels.fold(deltas).astype(kind)
            head = bytes([target, n_atoms - 1, 121])
            (folder / f"folded-{target}-{n_atoms}").write_bytes(head + folded.tobytes())
        head = bytes([n_atoms - 1, len(x) - 1, 121]) + bytes(range(n_atoms))
        room = np.empty(kernels.packed_limit(len(x), 3 * n_atoms), np.uint8)
        packed = kernels.pack(deltas, room)
        assert packed is not None
        for target in (5, 6):
            (folder / f"packed-{target}-{n_atoms}").write_bytes(
                bytes([target]) + head + packed.tobytes()
            )
        for cut in ((0, 0), (2, 64)):
            rigid = kernels.encode_rigid(x, 0.01, *cut, xtc=False)
            if rigid is None:
                continue
            size = len(rigid[0])
            head = bytes([9, n_atoms - 1, len(x) - 1, min(size // 16, 255), size % 16])
            (folder / f"rigid-{n_atoms}-{cut[0]}").write_bytes(head + rigid[0] + rigid[1].tobytes())
        (folder / f"integers-{n_atoms}").write_bytes(bytes([7, n_atoms - 1, 0]) + deltas.tobytes())
    for n_atoms, begin in ((1, 0), (41, 0), (399, 20_000)):  # the last of water
        x = np.ascontiguousarray(block.positions[:, begin : begin + n_atoms])
        deltas = kernels.quantise(x, 0.01)
        assert deltas is not None
        for number in range(4):
            cut = (0, 160, 64, 224)[number]
            changes = bytes([number, 9 * number, 7, number, 50 * number, 1, 0, 0])
            data = bytes([8, n_atoms // 2, cut]) + changes + deltas.tobytes()
            (folder / f"rigid-integers-{number}-{n_atoms}").write_bytes(data)
    (folder / "bytes").write_bytes(bytes([4, 3]) + block.positions[0, :2000].tobytes())


def main() -> None:
    """Fill the folders."""
    for name, fill in (("xtc", xtc_seeds), ("codecs", codec_seeds), ("kernels", codec_seeds)):
        folder = Path(sys.argv[1], name)
        folder.mkdir(parents=True, exist_ok=True)
        fill(folder)


if __name__ == "__main__":
    main()
