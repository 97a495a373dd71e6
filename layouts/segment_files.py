"""The files of a segmented trajectory: their names, and what the manifest says of each.

::

    NAME.segments/
        manifest.json
        000/seg-000000.xtc          a whole trajectory of its format
        000/.seg-000000.xtc.mdio-index
        ...
        001/seg-000128.xtc
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mdio.core.errors import CorruptLayoutError

__all__ = ["MANIFEST", "Segment", "even_split", "segment_name", "segments_of"]

MANIFEST = "manifest.json"
FOLDER_SEGMENTS = 128
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
    """Of the whole file."""
    time_first_ps: float

    @property
    def stop(self) -> int:
        """One beyond its last frame."""
        return self.first_frame + self.n_frames


def segment_name(number: int, container: str) -> str:
    """Return the path of a segment inside the folder."""
    return f"{number // FOLDER_SEGMENTS:03d}/seg-{number:06d}.{container}"


def even_split(n_frames: int, n_segments: int) -> tuple[int, ...]:
    """Return the frames of each segment: as even as can be, the longer ones first."""
    size, longer = divmod(n_frames, n_segments)
    return (size + 1,) * longer + (size,) * (n_segments - longer)


def segments_of(manifest: Mapping[str, Any], path: Path) -> list[Segment]:
    """Return the segments that a manifest lists.

    Raises
    ------
    CorruptLayoutError
        They do not follow one another from the first frame to the last, or lie elsewhere than in
        the folder.
    """
    segments: list[Segment] = []
    at = 0
    rows = manifest.get("segments")
    for row in rows if isinstance(rows, list) else []:
        try:
            segment = Segment(**row)
            place = PurePosixPath(segment.file)
            numbers = (segment.first_frame, segment.n_frames, segment.nbytes, segment.crc32c)
            sound = (
                all(type(number) is int for number in numbers)
                and segment.first_frame == at
                and segment.n_frames > 0
                and isinstance(segment.time_first_ps, int | float)
                and not place.is_absolute()
                and ".." not in place.parts
            )
        except TypeError:
            sound = False
        if not sound:
            raise CorruptLayoutError(
                f"{path / MANIFEST}: segment {len(segments)} is described as {str(row)[:120]}, "
                f"expected one that begins at frame {at}; split or convert the source anew"
            )
        segments.append(segment)
        at = segment.stop
    if at != manifest["n_frames"]:
        raise CorruptLayoutError(
            f"{path / MANIFEST}: its segments hold {at} frames, expected {manifest['n_frames']}; "
            "split or convert the source anew"
        )
    return segments
