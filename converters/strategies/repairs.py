"""What a conversion needs to know where it repairs an output instead of making one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mdio.core.errors import SourceError
from mdio.layouts.base import Layout
from mdio.layouts.writer import OutputMeta

SUMS = ("file_crc32c", "column_crc32c", "table_crc32c", "segments", "piece_checksums", "parts")
"""Keys of a manifest under which checksums are, directly or of tables of them."""


@dataclass
class Repairs:
    """An output, and what the repaired one says of itself."""

    former: Layout
    """Opened without verifying, since what it says is compared one by one."""
    meta: OutputMeta
    manifest: Mapping[str, Any]
    """Of the former output."""
    made: Mapping[str, Any]
    """What fields of the plan are to be; see `Layout.made_as`."""

    def compare(self, manifest: Mapping[str, Any]) -> None:
        """Compare all checksums of the repaired output with those of the former one.

        Raises SourceError: they differ: what was written again is not what was there.
        """
        for key in SUMS:
            if key in self.manifest and manifest.get(key) != self.manifest[key]:
                raise SourceError(
                    f"{self.former.path}: what this source gives does not have the checksums that "
                    "the output was written with, so nothing was changed; give the source (and the "
                    "topology) that it was made from, or convert again"
                )
