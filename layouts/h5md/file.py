"""Creating H5MD files with groups, units and space for every array, and encoding their chunks.

Format: H5MD 1.1 (de Buyl, Colberg, Hoefling 2014, 10.1016/j.cpc.2014.01.018), in the oldest HDF5
structures that can hold it (any HDF5 from 1.8 on reads them, also in a file whose writer was
killed).

Every chunk has the full chunk shape, as HDF5 requires, with zeros after the last frame and the
last atom. Checksums are over the whole decoded chunk, zeros included. In an array without chunks
the last run of frames ends with the last frame. Integers are stored as in Zarr, by an HDF5 filter
that other programs need as a plug-in; such a chunk stores no frames and atoms after the last, and
reading it fills them with zeros again.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5pl, h5s, h5t, h5z
from h5py._objects import phil as hdf5_lock
from numpy.typing import NDArray

from mdio._version import __version__
from mdio.core.boxes import edges_from_boxes, periodic_axes
from mdio.core.errors import PlanError
from mdio.core.files.reading import OpenFile
from mdio.core.files.span_checksums import total_and_row_checksums
from mdio.core.files.writing import allocate
from mdio.core.frames import H5MD_NAMES, absent_frames
from mdio.core.kernels import crc32c, shuffle
from mdio.layouts.codecs import quantised
from mdio.layouts.codecs.compressors import PRESETS, quantised_from_option
from mdio.layouts.codecs.quantised import PACKING_CODECS, QuantisedFormat
from mdio.layouts.h5md.disk import ArrayRanges, Writes, open_output
from mdio.layouts.h5md.io import BOX_PATH, CREATOR, SOURCE_STEP, Column, Flavour, get_flavour
from mdio.layouts.manifest import FULL_SYSTEM, runs_from_indices

if TYPE_CHECKING:
    from mdio.layouts.plan import ArrayPlan, LayoutPlan
    from mdio.layouts.writer import OutputMeta

LIBVER = ("earliest", "v110")


def value_path(group: str, field: str) -> str:
    """Return the HDF5 path of the numbers of an array."""
    return f"particles/{group}/{H5MD_NAMES[field]}/value"


def is_aligned(array: ArrayPlan, alignment_nbytes: int) -> bool:
    """Return whether chunks of `array` begin at multiples of `alignment_nbytes`.

    They do if the plan has an alignment and chunks fill stripes well; chunks of a small group,
    which do not, follow each other without gaps. Of contiguous arrays those of the full system are
    aligned.
    """
    from mdio.layouts.plan import MAX_PADDING  # only writing needs it

    if array.contiguous:
        return alignment_nbytes > 1 and array.group == FULL_SYSTEM
    padded_nbytes = -(-array.chunk_nbytes // alignment_nbytes) * alignment_nbytes
    return alignment_nbytes > 1 and array.chunk_nbytes >= (1 - MAX_PADDING) * padded_nbytes


def create_file(
    path: Path,
    plan: LayoutPlan,
    atom_ids: Mapping[str, NDArray[np.int64]],
    writes: Writes | None = None,
) -> tuple[dict[tuple[str, str], ArrayRanges], dict[str, Column]]:
    """Make the file with everything except the frames.

    `path`: does not exist yet, or is empty (as ``lfs setstripe`` leaves it). `atom_ids`: by group,
    the numbers of its atoms in the source, where they are not 0, 1, 2, ... `writes`: list
    to which offsets and lengths of all writes, and of the allocated columns, are added. Returns
    where chunks are, by group and field, unless they are compressed; and the columns.
    """
    aligned = [a for a in plan.arrays if is_aligned(a, plan.stripes.alignment_nbytes)]
    unaligned = [a for a in plan.arrays if a not in aligned]
    threshold = min((a.chunk_nbytes for a in aligned), default=1)
    mode = "w" if path.exists() and path.stat().st_size == 0 else "x"
    # Alignment is a property of the open file: it is opened again to make the rest without it.
    with open_output(
        path,
        mode,
        writes,
        libver=LIBVER,
        alignment_threshold=threshold,
        alignment_interval=plan.stripes.alignment_nbytes,
    ) as file:
        create_groups(file, plan.arrays)
        for array in aligned:
            _create_array(file, array, plan)
    with open_output(path, "r+", writes, libver=LIBVER) as file:
        for array in unaligned:
            _create_array(file, array, plan)
        columns = create_columns(file, plan)
        for group, ids in atom_ids.items():
            file[f"particles/{group}"].create_dataset("id", data=ids)
        ranges = {}
        for array in plan.arrays if plan.compression is None else ():
            dataset = file[value_path(array.group, array.field)]
            ranges[array.group, array.field] = chunk_ranges(dataset, array.chunk_frames)
    if plan.writing.direct:
        from mdio.core.files.writing import WrittenFile  # only writing needs it

        with WrittenFile(path) as written_file:
            allocate(written_file.fileno(), path.stat().st_size)
    if writes is not None:
        sizes = {column.offset: column.row_nbytes * plan.n_frames for column in columns.values()}
        writes += sizes.items()
    return ranges, columns


def create_groups(file: h5py.File, arrays: Sequence[ArrayPlan]) -> None:
    """Make the groups and attributes that H5MD requires, and a group for each array."""
    h5md = file.create_group("h5md")
    h5md.attrs.create("version", (1, 1), dtype="<i4")
    # Strings of fixed length, as in the H5MD text: HDF5 may crash on a damaged heap of variable
    # ones. MDAnalysis reads units only as variable ones, which mdio writes but never reads.
    h5md.create_group("author").attrs["name"] = np.bytes_("N/A")
    creator = h5md.create_group("creator")
    creator.attrs["name"] = np.bytes_(CREATOR)
    creator.attrs["version"] = np.bytes_(__version__)
    units = h5md.create_group("modules/units")
    units.attrs.create("version", (1, 0), dtype="<i4")
    units.attrs["system"] = np.bytes_("SI")
    # MDAnalysis reads the first particle group that h5py lists: in order of creation, the full
    # system.
    particles = file.create_group("particles", track_order=True)
    particles.create_group(FULL_SYSTEM)
    for array in arrays:
        particles.require_group(f"{array.group}/{H5MD_NAMES[array.field]}")
    file.create_group("mdio")


def _create_array(file: h5py.File, array: ArrayPlan, plan: LayoutPlan) -> None:
    creation_properties = h5p.create(h5p.DATASET_CREATE)
    if array.contiguous:
        creation_properties.set_layout(h5d.CONTIGUOUS)
    else:
        creation_properties.set_chunk((array.chunk_frames, array.chunk_atoms, 3))
    creation_properties.set_fill_time(h5d.FILL_TIME_NEVER)
    codec = chunk_codec(plan, array.field)
    if codec is None:
        creation_properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    elif isinstance(codec, int):
        creation_properties.set_shuffle()
        creation_properties.set_deflate(codec)
    else:  # optional, so that HDF5 makes the array without the filter; reading needs it anyway
        values = (FILTER_VERSION, array.chunk_frames, array.chunk_atoms)
        with _without_plug_ins():
            creation_properties.set_filter(FILTER_ID, h5z.FLAG_OPTIONAL, values)
    path = value_path(array.group, array.field)
    space = h5s.create_simple((plan.n_frames, array.n_atoms, 3))
    h5d.create(file.id, path.encode(), h5t.IEEE_F32LE, space, creation_properties)
    file[path].attrs["unit"] = get_flavour(plan.flavour).units[array.field]


@contextmanager
def _without_plug_ins() -> Iterator[None]:
    """Keep HDF5 from looking for a filter, which writing does not need, in its plug-ins.

    It would load all of them. Those that netCDF4 brings (``HDF5_PLUGIN_PATH``) are linked with
    another HDF5, and beside UCX 1.18 ranks of MPI crashed there.
    """
    with hdf5_lock:
        folders = [h5pl.get(index) for index in range(h5pl.size())]
        for _ in folders:
            h5pl.remove(0)
        try:
            yield
        finally:
            for folder in folders:
                h5pl.append(folder)


def create_column(parent: h5py.Group, name: str, shape: tuple[int, ...], dtype: str) -> Column:
    """Make a contiguous dataset, with its space in the file allocated at once."""
    creation_properties = h5p.create(h5p.DATASET_CREATE)
    creation_properties.set_layout(h5d.CONTIGUOUS)
    creation_properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    creation_properties.set_fill_time(h5d.FILL_TIME_NEVER)
    hdf5_type = h5t.py_create(np.dtype(dtype))
    h5d.create(parent.id, name.encode(), hdf5_type, h5s.create_simple(shape), creation_properties)
    return Column.of(parent[name])


def create_columns(file: h5py.File, plan: LayoutPlan) -> dict[str, Column]:
    """Make time, step and box of all frames, and link to them from every array."""
    particles = file["particles"]
    position = particles[f"{FULL_SYSTEM}/position"]
    time = create_column(position, "time", (plan.n_frames,), "<f8")
    step = create_column(position, "step", (plan.n_frames,), "<i8")
    position["time"].attrs["unit"] = "ps"
    box = particles.create_group(f"{FULL_SYSTEM}/box")
    box.attrs["dimension"] = 3
    for array in plan.arrays:
        group = particles[array.group]
        element = group[H5MD_NAMES[array.field]]
        for name in ("step", "time"):  # hard links
            if name not in element:
                element[name] = position[name]
        if "box" not in group:
            group["box"] = box
    columns = {"time": time, "step": step}
    return columns | {"box": create_column(file, BOX_PATH, (plan.n_frames, 6), "<f4")}


def _run_ranges(dataset: h5py.Dataset, n_frames: int) -> ArrayRanges:
    total, n_atoms = dataset.shape[:2]
    if not 1 <= n_frames <= total:
        raise ValueError(f"{dataset.name} has {total} frames, not runs of {n_frames}")
    first = np.arange(0, total, n_frames, dtype=np.int64)[:, None]
    nbytes = 12 * n_atoms * np.minimum(n_frames, total - first)
    return Column.of(dataset).offset + 12 * n_atoms * first, nbytes


def chunk_ranges(dataset: h5py.Dataset, run_frames: int = 0) -> ArrayRanges:
    """Return offsets and bytes of the chunks of a (F, A, 3) dataset; -1 and 0 if missing.

    Of a contiguous dataset, those of its runs of `run_frames`.
    """
    chunk = dataset.chunks
    if chunk is None:
        return _run_ranges(dataset, run_frames)
    grid = tuple(-(-n // c) for n, c in zip(dataset.shape[:2], chunk[:2], strict=True))
    offset = np.full(grid, -1, np.int64)
    nbytes = np.zeros(grid, np.int64)

    def add_chunk(info: Any) -> None:
        if info.filter_mask:
            raise ValueError(f"{dataset.name}: a chunk was stored without its filters")
        index = info.chunk_offset[0] // chunk[0], info.chunk_offset[1] // chunk[1]
        offset[index] = info.byte_offset
        nbytes[index] = info.size

    if hasattr(dataset.id, "chunk_iter"):
        dataset.id.chunk_iter(add_chunk)
    else:  # HDF5 before 1.12.3
        for row, column in np.ndindex(*grid):
            add_chunk(dataset.id.get_chunk_info_by_coord((row * chunk[0], column * chunk[1], 0)))
    return offset, nbytes


def write_edges(file: h5py.File, column: Column, source: OpenFile, flavour: Flavour) -> bool:
    """Write the edges of the boxes, and return True, unless no frame has a box."""
    box = file[f"particles/{FULL_SYSTEM}/box"]
    axes = [periodic_axes(column.read(source, *run)) for run in column.runs()]
    periodic = np.any([np.zeros(3, bool), *axes], axis=0)
    has_box = bool(periodic.any())
    box.attrs["boundary"] = ["periodic" if is_periodic else "none" for is_periodic in periodic]
    if has_box or flavour.system_name is not None:
        position = file[f"particles/{FULL_SYSTEM}/position"]
        edges = box.create_group("edges")
        edges["step"], edges["time"] = position["step"], position["time"]
        create_column(edges, "value", (column.shape[0], 3, 3), "<f4")
        edges["value"].attrs["unit"] = flavour.units["positions"]
        for start, stop in column.runs():
            boxes = column.read(source, start, stop).copy()
            boxes[:, :3] = flavour.to_stored_units("positions", boxes[:, :3])
            edges["value"][start:stop] = edges_from_boxes(boxes)
    return has_box


def renumber_unordered_steps(file: h5py.File, column: Column, source: OpenFile) -> None:
    """If the source's steps do not increase, move them to `SOURCE_STEP` and number the frames."""
    last = np.array([-1], np.int64)
    increasing = True
    for run in column.runs():
        steps = column.read(source, *run)
        increasing &= bool((np.diff(steps, prepend=last) > 0).all())
        last = steps[-1:]
    if increasing:
        return
    create_column(file, SOURCE_STEP, column.shape, "<i8")
    h5md_step: Any = file[f"particles/{FULL_SYSTEM}/position/step"]
    for start, stop in column.runs():
        file[SOURCE_STEP][start:stop] = column.read(source, start, stop)
        h5md_step[start:stop] = np.arange(start, stop)


PRESENT_READ_NBYTES = 32 << 20
"""Approximate bytes that are read at a time to see which frames have a field."""


def link_full_system(file: h5py.File, plan: LayoutPlan) -> None:
    """Add the group of all atoms under the name that the flavour's program looks for.

    Of a field that some frames lack, virtual datasets show only the frames that have it.
    """
    name = get_flavour(plan.flavour).system_name
    if name is None:
        return
    full_system = file[f"particles/{FULL_SYSTEM}"]
    if not plan.native.sparse:
        file[f"particles/{name}"] = full_system
        return
    system = file.create_group(f"particles/{name}")
    box = system.create_group("box")
    box.attrs.update(full_system["box"].attrs)
    for field_name in dict.fromkeys(array.field for array in plan.arrays):
        element = H5MD_NAMES[field_name]
        frames = _present_frames(full_system[element]["value"])
        group = system.create_group(element)
        _add_virtual_value(group, full_system[element], frames)
        for column in ("step", "time"):
            group[column] = full_system[element][column][...][frames]
            group[column].attrs.update(full_system[element][column].attrs)
        if field_name == "positions":
            edges = box.create_group("edges")
            _add_virtual_value(edges, full_system["box/edges"], frames)
            edges["step"], edges["time"] = group["step"], group["time"]


def _present_frames(dataset: h5py.Dataset) -> NDArray[np.int64]:
    n_rows = max(1, PRESENT_READ_NBYTES // (12 * dataset.shape[1]))
    if dataset.chunks is not None:
        n_rows = max(dataset.chunks[0], n_rows - n_rows % dataset.chunks[0])
    is_present = [
        ~absent_frames(dataset[first : first + n_rows])
        for first in range(0, dataset.shape[0], n_rows)
    ]
    return np.flatnonzero(np.concatenate(is_present)).astype(np.int64)


def _add_virtual_value(group: h5py.Group, source: h5py.Group, frames: NDArray[np.int64]) -> None:
    """Make a virtual dataset ``value`` that shows `frames` of the one in `source`."""
    dataset = source["value"]
    layout = h5py.VirtualLayout((len(frames), *dataset.shape[1:]), dataset.dtype)
    virtual_source = h5py.VirtualSource(".", dataset.name, dataset.shape)
    first = 0
    for start, stop, step in runs_from_indices(frames):
        n_frames = len(range(start, stop, step))
        layout[first : first + n_frames] = virtual_source[start:stop:step]
        first += n_frames
    group.create_virtual_dataset("value", layout, fillvalue=np.nan)
    group["value"].attrs.update(dataset.attrs)


FILTER_ID, OLD_FILTER_ID = 33_165, 397
"""Number of the HDF5 filter for integers, in the range from 32,768 on that is for applications; the
old number, in the range for tests, is still read."""
FILTER_VERSION = 1

ChunkCodec = int | QuantisedFormat | None
"""The encoding of chunks: HDF5's shuffle and deflate of a level, mdio's filter, or none."""

DEFAULT_GZIP_LEVEL = 4
"""zlib's higher levels take several times as long for a few percent."""

FLOAT32_MAX_MULTIPLE = 2.0**23
"""A float32 of at least this many steps has no bits below the step."""


def gzip_level(compression: str | None) -> int | None:
    """Return the zlib level that ``gzip`` or ``gzip:LEVEL`` requests; None for no compression."""
    if compression is None or compression == "none":
        return None
    name, _, level = compression.partition(":")
    if name != "gzip" or (level and not (level.isdecimal() and 0 <= int(level) <= 9)):
        raise PlanError(
            f"--compression {compression}: H5MD files are compressed with gzip or gzip:0 to gzip:9 "
            "(which every HDF5 reads), integers also with bitpack or rigid[-seek]; take one of "
            "these, none, or the zarr layout"
        )
    return int(level) if level else DEFAULT_GZIP_LEVEL


def integer_codec(compression: str | None) -> str | None:
    """Return the codec for integers that ``--compression`` names; None for anything else."""
    name = PRESETS.get(compression or "", (None, compression))[1]
    return name if name in PACKING_CODECS else None


def chunk_codec(plan: LayoutPlan, field: str) -> ChunkCodec:
    """Return the encoding of the chunks of a field."""
    if plan.compression not in PACKING_CODECS:
        return gzip_level(plan.compression)
    rounding_step = plan.rounding_step(field)
    if rounding_step is None:
        return DEFAULT_GZIP_LEVEL
    rounding_step /= get_flavour(plan.flavour).factors.get(field, 1)
    precision_source = plan.precision_source if field == "positions" else "asked"
    return quantised_from_option(rounding_step, precision_source, plan.compression)


def power_of_two_step(precision: float, option: str = "--precision") -> float:
    """Return the largest power of two that is at most `precision`, the value of `option`.

    Multiples of it have zeros as low bits, which compress better, and rounding to them is exact.
    """
    if not (math.isfinite(precision) and 2.0**-100 <= precision <= 2.0**100):
        raise PlanError(f"{option} {precision}: give a positive number")
    return math.ldexp(1.0, math.frexp(precision)[1] - 1)


def round_to_step(values: NDArray[np.float32], step: float) -> NDArray[np.float32]:
    """Return the nearest multiples of `step`, a power of two.

    The error is at most half a step. NaN, infinity and numbers too large to have bits below the
    step stay as they are.
    """
    scale = np.float32(step)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.rint(values / scale) * scale
        return np.where(np.abs(values) < np.float32(FLOAT32_MAX_MULTIPLE * step), rounded, values)


def cut_chunks(
    array: ArrayPlan, start: int, values: NDArray[np.float32]
) -> Iterator[tuple[int, int, tuple[int, int], NDArray[np.float32]]]:
    """Cut a run of frames, from frame `start` on, where a chunk begins, into chunks.

    `values`, (F, A, 3) float32: frames up to the end of a chunk, or of the trajectory. Yields the
    chunk's numbers along frames and atoms; frames and atoms in it; and its values: C-contiguous,
    little endian, padded to the full shape unless the array is contiguous (a view of `values` where
    possible).
    """
    if start % array.chunk_frames:
        raise ValueError(f"a piece begins at frame {start}, within a chunk of {array.chunk_frames}")
    shape = (array.chunk_frames, array.chunk_atoms, 3)
    for first in range(0, len(values), array.chunk_frames):
        for atom_chunk in range(array.n_atom_chunks):
            atom = atom_chunk * array.chunk_atoms
            part = values[first : first + array.chunk_frames, atom : atom + array.chunk_atoms]
            part_shape = part.shape[:2]
            if part.shape != shape and not array.contiguous:
                padded = np.zeros(shape, "<f4")
                padded[: part.shape[0], : part.shape[1]] = part
                part = padded
            frame_chunk = (start + first) // array.chunk_frames
            yield frame_chunk, atom_chunk, part_shape, np.ascontiguousarray(part, "<f4")


def chunk_checksums(chunk: NDArray[np.float32], codec: ChunkCodec) -> list[int]:
    """Return the crc32c of a chunk and, if it is not compressed, those of the spans of its rows."""
    if codec is not None:
        return [crc32c(chunk)]
    chunk_crc, rows = total_and_row_checksums(chunk)
    return [chunk_crc, *rows]


def encode_chunk(
    chunk: NDArray[np.float32], codec: ChunkCodec, shape: tuple[int, int]
) -> tuple[Any, list[int]]:
    """Return the bytes of a chunk to store, and `chunk_checksums` of what they decode to.

    `shape`: number of its frames and atoms; the rest of the chunk is zeros. Floats are shuffled and
    deflated as by HDF5 (RFC 1950).
    """
    if isinstance(codec, QuantisedFormat):
        unpadded = np.ascontiguousarray(chunk[: shape[0], : shape[1]])
        stored = quantised.encode_chunk(unpadded, codec, for_filter=True)
        if codec.rule == "step":  # other rules are lossless
            chunk = np.empty_like(chunk)
            decode_integers(np.frombuffer(stored, np.uint8), chunk)
        return stored, chunk_checksums(chunk, codec)
    checksums = chunk_checksums(chunk, codec)
    if codec is None:
        return chunk, checksums
    return zlib.compress(shuffle(chunk, chunk.itemsize), codec), checksums


def decode_integers(stored: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """Decode a chunk of integers into `out`, (F, A, 3), with zeros after its frames and atoms."""
    n_frames, n_atoms = quantised.shape_of(stored.data)
    if not (1 <= n_frames <= len(out) and 1 <= n_atoms <= out.shape[1]):
        raise ValueError(f"{n_frames} frames of {n_atoms} atoms in a chunk of {out.shape[:2]}")
    quantised.decode_chunk(stored.data, (n_frames, n_atoms), out[:n_frames, :n_atoms])
    out[:n_frames, n_atoms:] = 0
    out[n_frames:] = 0


def atom_ids(meta: OutputMeta) -> dict[str, NDArray[np.int64]]:
    """Return, by group, the atoms' numbers in the source; without groups that are 0, 1, 2, ..."""
    ids = {} if meta.atoms is None else {FULL_SYSTEM: np.asarray(meta.atoms)}
    for name, atoms in (meta.groups or {}).items():
        ids[name] = ids[FULL_SYSTEM][atoms] if FULL_SYSTEM in ids else np.asarray(atoms)
    return ids


def parse_key(key: str) -> tuple[tuple[str, str], tuple[int, int]]:
    """Return (group, field), and the numbers along frames and atoms, of an encoded chunk's key."""
    group, field, frame_chunk, atom_chunk = key.split("/")
    return (group, field), (int(frame_chunk), int(atom_chunk))
