"""Writes what ``mdio convert --per-rank`` wrote once: H5MD whose frames lie in parts."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from unittest.mock import patch

import h5py
import numpy as np
from suites.outputs import as_options

import mdio
from mdio.converters.convert import prepare
from mdio.converters.options import ConversionOptions
from mdio.core.files.checks import parts_folder
from mdio.layouts.h5md.file import (
    LIBVER,
    atom_ids,
    create_columns,
    create_groups,
    value_path,
)
from mdio.layouts.h5md.io import get_flavour
from mdio.layouts.h5md.parts import IN_PARTS, Part
from mdio.layouts.h5md.writer import H5MDWriter
from mdio.layouts.manifest import build_manifest
from mdio.layouts.writer import PieceRecord
from mdio.parallel.executors import Serial


def write_parts(source, out: Path, n_parts: int = 2, **options) -> None:
    """Write `source` into so many files in ``OUT.parts``, and `out`, which joins them."""
    conversion = prepare(source, out, ConversionOptions.of(**options), Serial())
    view, meta = conversion.view, conversion.job.meta()
    unit = max(array.chunk_frames for array in conversion.plan.arrays)
    n_units = max(1, view.info.n_frames // unit)
    n_parts = min(n_parts, n_units)
    edges = unit * (np.arange(n_parts + 1) * n_units // n_parts)
    edges[-1] = view.info.n_frames
    folder = parts_folder(out)
    folder.mkdir()
    marker = {"uuid": meta.uuid, "file": out.name, "folder": folder.name}
    (folder / "parts.json").write_text(json.dumps(marker))
    own = {"start", "stop", "step", "dt_ps", "begin_ps", "end_ps"}
    same = {name: value for name, value in options.items() if name not in own}
    # A dataset has no chunks longer than itself, and the columns of a part are its own.
    parts, blocks = [], []
    for number, (first, stop) in enumerate(itertools.pairwise(edges.tolist())):
        part = folder / f"{number:04d}.h5md"
        frames = view.frames[first:stop]
        step = int(frames[1] - frames[0]) if len(frames) > 1 else 1
        span = {"start": int(frames[0]), "stop": int(frames[-1]) + 1, "step": step}
        mdio.convert(source, part, **as_options({**same, **span}))
        with mdio.open(part) as layout:
            blocks.append(layout.read(0, stop - first, atoms=[]))
            said, crc = layout.manifest, layout.backend.manifest_crc32c
        parts.append(Part(part.name, first, stop - first, said["uuid"], part.stat().st_size, crc))
    writer = _JoiningWriter(out, conversion.plan, meta, parts)
    writer.create()
    for part, block in zip(parts, blocks, strict=True):
        writer.commit(
            PieceRecord(part.first_frame, part.stop, {}, 0, block.box, block.time, block.step)
        )
    writer.finish()
    conversion.close()
    for path in folder.glob("*.top.*"):
        path.unlink()


def convert(source, out: Path, *, per_rank: bool = False, workers: int = 1, **options) -> None:
    """Convert, `per_rank` into as many parts as there are workers."""
    if per_rank:
        write_parts(source, out, workers, **options)
    else:
        mdio.convert(source, out, workers=workers, **as_options(options))


class _JoiningWriter(H5MDWriter):
    _uncompressed = True

    def __init__(self, path, plan, meta, parts) -> None:
        super().__init__(path, plan, meta)
        self.parts = parts
        self._arrays, self._crcs, self._spans = {}, {}, {}

    def _check_all_chunks(self) -> None:
        """There is one record for each part, of several pieces."""

    def create(self) -> None:
        folder = parts_folder(self.path).name
        with h5py.File(self.path, "x", libver=LIBVER) as file:
            create_groups(file, self.plan.arrays)
            for array in self.plan.arrays:
                self._join(file, array, folder)
            self._ranges, self.columns = {}, create_columns(file, self.plan)
            for group, ids in atom_ids(self.meta).items():
                file[f"particles/{group}"].create_dataset("id", data=ids)
            file["mdio"].attrs[IN_PARTS] = len(self.parts)

    def _join(self, file, array, folder) -> None:
        path = value_path(array.group, array.field)
        joined = h5py.VirtualLayout((self.plan.n_frames, array.n_atoms, 3), "<f4")
        for part in self.parts:
            shape = (part.n_frames, array.n_atoms, 3)
            joined[part.first_frame : part.stop] = h5py.VirtualSource(
                f"{folder}/{part.file}".replace("%", "%%"), path, shape=shape, dtype="<f4"
            )
        file.create_virtual_dataset(path, joined, fillvalue=np.nan)
        file[path].attrs["unit"] = get_flavour(None).units[array.field]

    def finish(self) -> None:
        said = {
            "parts_folder": parts_folder(self.path).name,
            "parts_reason": "asked for",
            "parts": [asdict(part) for part in self.parts],
        }
        with patch("mdio.layouts.h5md.writer.build_manifest", partial(build_manifest, **said)):
            super().finish()
