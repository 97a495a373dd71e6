"""Whole trajectories of every readable format, and damaged copies of them; see mutated.py."""

from __future__ import annotations

import os
import re
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).parents[1]))

from suites import h5md_cases, per_rank, xtc_cases
from suites.native_files import ALL, CELLS, made_up, write_dcd, write_ncdf, write_trr

import mdio

TEMPTING = (0, 1, -1, 2, 3, 7, 48, 84, 1 << 16, 1 << 30, 2**31 - 1, -(2**31))
TOKENS = re.compile(rb'-?\d+(?:\.\d+)?(?:e-?\d+)?|"[^"]*"|true|false|null|[{}\[\],:]')
WORDS = (b"null", b"true", b"[]", b"{}", b"-1", b"0", b"1e400", b"NaN", b'""', b'"nm"', b"[0, 0]")
HDF5 = b"\x89HDF"
"""Metadata are all over such files."""
UNITS = {
    "position": "nm",
    "velocity": "nm ps-1",
    "force": "kJ mol-1 nm-1",
    "edges": "nm",
    "time": "ps",
}


def _xtc(path: Path, variant: int) -> None:
    rng = np.random.default_rng(variant)
    n_atoms = (40, 9, 300)[variant % 3]  # up to nine atoms are not compressed
    frames = [xtc_cases.mixture(n_atoms, rng) for _ in range(5)]
    xtc_cases.write(path, np.array(frames))


def _trr(path: Path, variant: int) -> None:
    kinds = (["xv"] * 4, ["xvf", "x", "xvf", "x"], ["xvf"] * 3, ["xp"] * 3)[variant % 4]
    write_trr(path, kinds, double=variant % 8 > 3)


def _dcd(path: Path, variant: int) -> None:
    options = ({}, {"fixed": [1, 3]}, {"charmm": 0}, {"order": ">", "charmm": 0})[variant % 4]
    cells = None if "charmm" in options else CELLS[:4]
    write_dcd(path, made_up(4, 5), cells, **options)


def _ncdf3(path: Path, variant: int) -> None:
    scales = {"velocities": np.float32(20.455)} if variant % 2 else {}
    variables = (ALL, ALL[:4], ("coordinates",))[variant % 3]
    version = ("NETCDF3_64BIT_OFFSET", "NETCDF3_CLASSIC")[variant == 5]
    write_ncdf(path, variables, scales=scales, version=version)


def _ncdf4(path: Path, variant: int) -> None:
    options = ({}, {"zlib": True, "chunksizes": (2, 4, 3)})[variant % 2]
    write_ncdf(path, ALL[: (2, 3, 4, 6)[variant % 4]], version="NETCDF4", **options)


def _tree(root: h5py.Group | zarr.Group, make: Callable, name: str) -> None:
    """Write an H5MD tree as other programs do; `make` makes an array."""
    block = h5md_cases.make_block(6, 5, velocities=True)
    root.create_group("h5md").attrs["version"] = [1, 1]
    group = root.create_group("particles").create_group(name)
    box = group.create_group("box")
    box.attrs["dimension"] = 3
    edges = np.einsum("fi,ij->fij", block.box[:, :3], np.eye(3, dtype=np.float32))
    arrays = {"position": block.positions, "velocity": block.velocities, "edges": edges}
    for element, values in arrays.items():
        folder = (box if element == "edges" else group).create_group(element)
        make(folder, "value", values).attrs["unit"] = UNITS[element]
        make(folder, "step", block.step)
        make(folder, "time", block.time).attrs["unit"] = "ps"


def _foreign_h5md(path: Path, variant: int) -> None:
    options = ({}, {"chunks": True}, {"chunks": True, "compression": "gzip"})[variant % 3]
    libver = ("earliest", "latest")[variant % 2]
    with h5py.File(path, "w", libver=libver) as file:
        _tree(file, lambda g, n, v: g.create_dataset(n, data=v, **options), "protein")


def _foreign_zarr(path: Path, variant: int, version: int) -> None:
    options = ({}, {"compressors": None})[variant % 2]

    def make(folder: zarr.Group, name: str, values: np.ndarray) -> zarr.Array:
        chunks = (4, *values.shape[1:])
        return folder.create_array(name, data=values, chunks=chunks, **options)

    _tree(zarr.open_group(str(path), mode="w", zarr_format=version), make, "trajectory")


def _own(path: Path, **options: object) -> None:
    """Convert; what XTC integers are kept of, or is copied, needs to be an XTC file first."""
    source = path.parent / "source.h5md"
    if options.get("precision") == "auto" or path.suffix == ".segments":
        source = source.with_suffix(".xtc")
    if not source.exists():
        h5md = source.with_suffix(".h5md")
        h5md_cases.write_h5md(h5md, h5md_cases.make_block(9, 40, velocities=True))
        if source != h5md:
            mdio.convert(h5md, source)
    per_rank.convert(source, path, **options)


OURS: dict[str, tuple[str, list[dict[str, object]]]] = {
    "H5MD of mdio": (
        "h5md",
        [
            {"chunk_frames": 4, "groups": {"some": np.arange(3, 20)}},
            {"chunk_frames": 4, "compression": "gzip:1"},
            {"contiguous": True},
        ],
    ),
    "H5MD of mdio, parts": ("h5md", [{"chunk_frames": 2, "per_rank": True, "workers": 2}]),
    "Zarr v3 of mdio": (
        "zarr",
        [
            {"chunk_frames": 4, "groups": {"some": np.arange(3, 20)}},
            {"chunk_frames": 4, "compression": "zstd"},
            {"chunk_frames": 4, "precision": 0.01},
            {"chunk_frames": 4, "precision": "auto"},
        ],
    ),
    "segments": (
        "segments",
        [{"segments": 3, "container": name} for name in ("xtc", "trr", "dcd", "ncdf")],
    ),
}
"""Suffix, and options of each variant. What is read is verified: an error, or what was written."""
OTHERS: dict[str, tuple[str, int, Callable[[Path, int], None]]] = {
    "XTC": ("xtc", 3, _xtc),
    "TRR": ("trr", 8, _trr),
    "DCD": ("dcd", 4, _dcd),
    "NetCDF-3": ("ncdf", 6, _ncdf3),
    "NetCDF-4": ("ncdf", 8, _ncdf4),
    "H5MD of others": ("h5md", 6, _foreign_h5md),
    "Zarr v2": ("zarr", 2, lambda path, variant: _foreign_zarr(path, variant, 2)),
    "Zarr v3 of others": ("zarr", 2, lambda path, variant: _foreign_zarr(path, variant, 3)),
}
"""Suffix, how many variants there are, and what writes one."""
FORMATS = (*OTHERS, *OURS)


def make_whole(kind: str, folder: Path) -> list[Path]:
    """Write all variants of a format, each in a folder of its own."""
    made = []
    suffix = (OURS.get(kind) or OTHERS[kind])[0]
    n_variants = len(OURS[kind][1]) if kind in OURS else OTHERS[kind][1]
    for variant in range(n_variants):
        path = folder / str(variant) / f"x.{suffix}"
        path.parent.mkdir(parents=True)
        if kind in OURS:
            _own(path, **OURS[kind][1][variant])
            for source in path.parent.glob("source.*"):
                source.unlink()
        else:
            OTHERS[kind][2](path, variant)
        made.append(path)
    return made


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Change bytes at random: flips, tempting numbers, moved, doubled or missing runs, cuts."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        n = len(found)
        if not n:
            break
        head = min(n, 1400) if rng.random() < (0.2 if data[:4] == HDF5 else 0.6) else n
        at = int(rng.integers(0, head))
        run = int(rng.integers(1, 64))
        how = int(rng.integers(0, 10))
        if how < 3:
            found[at] ^= 1 << int(rng.integers(0, 8))
        elif how == 3:
            found[at] = int(rng.integers(0, 256))
        elif how < 7:
            at -= at % 4
            kind = str(rng.choice(["<i", ">i", "<q", ">q"]))
            packed = struct.pack(kind, int(rng.choice(TEMPTING)))
            found[at : at + len(packed)] = packed
        elif how == 7:
            found[at : at + run] = bytes(min(run, n - at))
        elif how == 8:
            other = int(rng.integers(0, n))
            found[at : at + run] = found[other : other + run]
        elif rng.random() < 0.3:
            del found[int(rng.integers(0, n)) :]
    return bytes(found)


def damage_text(data: bytes, rng: np.random.Generator) -> bytes:
    """Replace words of JSON by others."""
    for _ in range(int(rng.integers(1, 4))):
        tokens = list(TOKENS.finditer(data))
        if not tokens:
            break
        token = tokens[int(rng.integers(0, len(tokens)))]
        words = [*WORDS, *(str(n).encode() for n in TEMPTING), b"", tokens[0].group()]
        words += [tokens[int(rng.integers(0, len(tokens)))].group() for _ in range(len(words))]
        word = words[int(rng.integers(0, len(words)))]
        data = data[: token.start()] + word + data[token.end() :]
    return data


def mutate(whole: Path, folder: Path, kind: str, seed: int, number: int) -> Path:
    """Put a damaged copy of what `whole` and its siblings are into `folder`, and return it."""
    rng = np.random.default_rng([seed, number, zlib.crc32(kind.encode())])
    shutil.copytree(whole.parent, folder, copy_function=os.link)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = files[int(rng.integers(0, len(files)))]
    how = rng.random()
    if len(files) > 1 and how < 0.05:
        file.unlink()
    elif how < 0.1 and file.name != whole.name:  # in its place, another output were just that
        shutil.copyfile(files[int(rng.integers(0, len(files)))], folder / "other")
        (folder / "other").replace(file)
    else:
        data = file.read_bytes()
        change = damage_text if data[:1] == b"{" and how < 0.8 else damage
        file.unlink()  # what others link to stays as it is
        file.write_bytes(change(data, rng))
    return folder / whole.name
