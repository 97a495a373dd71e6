"""H5MD in parts for tests: 784 frames in three of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
from suites.per_rank import write_parts

import mdio
from mdio.layouts.manifest import with_checksum


def make_parts(adk, folder: Path) -> Path:
    """Convert eight times the same trajectory, with a group, on three workers."""
    out = folder / "a.h5md"
    options = {"top": adk["psf"], "groups": {"ca": "name CA"}, "chunk_frames": 13}
    write_parts([adk["xtc"]] * 8, out, 3, **options)
    return out


def copy_parts(made: Path, folder: Path) -> Path:
    """Copy the file and its parts, to change them."""
    shutil.copy(made, folder / "a.h5md")
    shutil.copytree(made.with_name("a.h5md.parts"), folder / "a.h5md.parts")
    return folder / "a.h5md"


def frames_of(path):
    with mdio.open(path) as layout:
        return layout.read(0, layout.info.n_frames)


def folder_of(path: Path) -> Path:
    """Return the folder of the parts that a file refers to."""
    with h5py.File(path) as file:
        return path.with_name(json.loads(file["mdio/manifest"].asstr()[()])["parts_folder"])


def parts_in(path):
    return sorted(part.name for part in folder_of(path).glob("*.h5md"))


def with_manifest(path, change):
    with h5py.File(path, "r+") as file:
        manifest = json.loads(file["mdio/manifest"].asstr()[()])
        del file["mdio/manifest"]
        change(manifest)
        file["mdio/manifest"] = json.dumps(with_checksum(manifest))
