"""The files of a segmented trajectory: their names, the manifest, which describes each, checksums.

::

    NAME.segments/
        manifest.json
        .mdio-checksums
        000/seg-000000.xtc          a whole trajectory of its format
        000/.seg-000000.xtc.mdio-index
        ...
        001/seg-000128.xtc
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.checks import manifest_in, read_regular
from mdio.core.files.in_flight import ByteRange, in_flight
from mdio.core.files.reading import OpenFile
from mdio.core.files.remote.outputs import Redirect
from mdio.core.files.span_checksums import SpanChecksums
from mdio.core.kernels import crc32c
from mdio.layouts.manifest import check_manifest
from mdio.layouts.native import NATIVE_FORMATS

MANIFEST = "manifest.json"
CHECKSUMS_FILE = ".mdio-checksums"
"""Checksums of the spans of every segment: a header line, then a table for each segment. The
manifest has the offset and size of each table, and its crc32c, which tells it from a table of
another output."""
CHECKSUMS_HEADER = b"mdio checksums 1\n"
CHECKSUMS_KEY = "piece_checksums"
LOST_CHECKSUMS_ADVICE = (
    "read the segments with --no-verify (verify=False), or split or convert the source again"
)
"""Advice if checksums are lost, but segments may be complete."""
READ_NBYTES = 1 << 20
SEGMENTS_PER_FOLDER = 128
"""Segments in a sub-folder: with an index beside each, 256 files."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a segmented trajectory."""

    file: str
    """Path inside the folder, with ``/``."""
    first_frame: int
    n_frames: int
    nbytes: int
    crc32c: int
    """Checksum of the whole file."""
    time_first_ps: float

    @property
    def stop(self) -> int:
        return self.first_frame + self.n_frames


def segment_name(number: int, container: str) -> str:
    """Return the path of a segment inside the folder."""
    return f"{number // SEGMENTS_PER_FOLDER:03d}/seg-{number:06d}.{container}"


def even_split(n_frames: int, n_segments: int) -> tuple[int, ...]:
    """Return the number of frames of each segment: as even as possible, the longer ones first."""
    size, n_longer = divmod(n_frames, n_segments)
    return (size + 1,) * n_longer + (size,) * (n_segments - n_longer)


def segments_of(manifest: Mapping[str, Any], path: Path) -> list[Segment]:
    """Return the segments that a manifest lists; raises CorruptLayoutError."""
    segments: list[Segment] = []
    next_frame = 0
    rows = manifest.get("segments")
    for row in rows if isinstance(rows, list) else []:
        try:
            segment = Segment(**row)
            file = PurePosixPath(segment.file)
            numbers = (segment.first_frame, segment.n_frames, segment.nbytes, segment.crc32c)
            is_valid = (
                all(type(number) is int for number in numbers)
                and segment.first_frame == next_frame
                and segment.n_frames > 0
                and isinstance(segment.time_first_ps, int | float)
                and not file.is_absolute()
                and ".." not in file.parts
            )
        except TypeError:
            is_valid = False
        if not is_valid:
            raise CorruptLayoutError(
                f"{path / MANIFEST}: segment {len(segments)} is described as {str(row)[:120]}, "
                f"expected one that begins at frame {next_frame}; split or convert the source again"
            )
        segments.append(segment)
        next_frame = segment.stop
    if next_frame != manifest["n_frames"]:
        raise CorruptLayoutError(
            f"{path / MANIFEST}: its segments hold {next_frame} frames, expected "
            f"{manifest['n_frames']}; split or convert the source again"
        )
    return segments


def write_checksums(folder: Path, tables: Sequence[bytes]) -> dict[str, Any]:
    """Write the checksums of all segments; return the manifest's entry for them."""
    parts = [CHECKSUMS_HEADER, *tables]
    offsets = list(accumulate(map(len, parts)))[:-1]
    with (folder / CHECKSUMS_FILE).open("wb") as file:
        file.writelines(parts)
    rows = zip(offsets, tables, strict=True)
    return {CHECKSUMS_KEY: [[offset, len(table), crc32c(table)] for offset, table in rows]}


def read_checksums(path: Path, manifest: Mapping[str, Any], number: int) -> SpanChecksums | None:
    """Return the checksums of a segment; None in outputs of older versions, which have none."""
    if CHECKSUMS_KEY not in manifest:
        return None
    try:
        offset, nbytes, crc = manifest[CHECKSUMS_KEY][number]
        # In a store, the file may still lie where the manifest of a new output redirects.
        with OpenFile(Redirect(path, manifest).path_of(CHECKSUMS_FILE)) as file:
            table = file.peek(offset, nbytes)
        if crc32c(table) == crc:
            return SpanChecksums.from_table(table)
        problem = f"its table of segment {number} has changed since it was written"
    except (OSError, ValueError, TypeError, IndexError, OverflowError) as error:
        problem = f"its table of segment {number} cannot be read ({error})"
    raise CorruptLayoutError(f"{path / CHECKSUMS_FILE}: {problem}; {LOST_CHECKSUMS_ADVICE}")


def check_checksums(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise CorruptLayoutError if the file of checksums is damaged, except in its tables."""
    expected = len(CHECKSUMS_HEADER) + sum(nbytes for _, nbytes, _ in manifest[CHECKSUMS_KEY])
    try:
        with OpenFile(Redirect(path, manifest).path_of(CHECKSUMS_FILE)) as file:
            header, nbytes = file.peek(0, len(CHECKSUMS_HEADER)), file.nbytes
    except SourceError as error:
        raise CorruptLayoutError(f"{error}; {LOST_CHECKSUMS_ADVICE}") from error
    if (header, nbytes) != (CHECKSUMS_HEADER, expected):
        raise CorruptLayoutError(
            f"{path / CHECKSUMS_FILE}: it begins with {header!r} and has {nbytes} bytes, expected "
            f"{CHECKSUMS_HEADER!r} and {expected}; {LOST_CHECKSUMS_ADVICE}"
        )


def file_crc(path: Path) -> int:
    """Return the crc32c of a file."""
    crc = 0
    with OpenFile(path) as file, in_flight([ByteRange(file, 0, file.nbytes)]):
        for begin in range(0, file.nbytes, READ_NBYTES):
            crc = crc32c(file.peek(begin, READ_NBYTES), crc)
    return crc


def read_manifest(path: Path, layout: str) -> dict[str, Any]:
    """Return the manifest of a folder of segments; raises CorruptLayoutError."""
    file = path / MANIFEST
    try:
        manifest = json.loads(read_regular(file))
    except FileNotFoundError as error:
        raise CorruptLayoutError(
            f"{path}: it has no {MANIFEST}, so it was not finished or is not a folder of "
            "segments; split or convert the source again"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptLayoutError(
            f"{file}: it cannot be read ({error}); split or convert the source again"
        ) from error

    manifest = check_manifest(manifest, path)
    container, fields = manifest.get("container"), manifest.get("fields")
    if (
        manifest["layout"] != layout
        or container not in NATIVE_FORMATS
        or not isinstance(fields, list)
    ):
        raise CorruptLayoutError(
            f"{file}: it describes the layout {manifest['layout']!r} with {fields!r} in files "
            f"of format {container!r}, expected {layout!r} with one of "
            f"{', '.join(NATIVE_FORMATS)}; split or convert the source again"
        )
    return manifest


def written_by_mdio(folder: Path) -> bool:
    """Return whether a folder has segments that mdio wrote; False for anything else."""
    manifest = manifest_in(folder)
    return manifest is not None and manifest.get("layout") == "segments"


def file_identity(path: Path) -> tuple[int, ...] | None:
    """Return numbers that distinguish a file from a later one of its name; None if missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
