"""What is to be made, of what: strategies are asked whether they are the one for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mdio.converters.options import ConversionOptions
from mdio.converters.provenance import Appended, output_meta
from mdio.converters.selection import AtomChoice
from mdio.converters.storage import StripeRequest
from mdio.converters.strategies.topology import topologies
from mdio.core.errors import SourceError
from mdio.core.files.turns import State
from mdio.core.frames import Stretch
from mdio.core.topology import Topology
from mdio.layouts.base import Layout
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import LayoutWriter, OutputMeta

SUMS = ("file_crc32c", "column_crc32c", "table_crc32c", "segments", "piece_checksums")
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
                    f"{self.former.path}: this source does not give the checksums that the output "
                    "was written with, so nothing was changed; give the source (and the topology) "
                    "that it was made from, or convert again"
                )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be made, of what, and how."""

    out: Path
    files: Sequence[Path]
    """Of the source."""
    view: ViewLayout
    """The frames and atoms that are kept."""
    choice: AtomChoice
    plan: LayoutPlan
    writer: type[LayoutWriter]
    options: ConversionOptions
    striping: StripeRequest
    nbytes_in: int
    transformed: Mapping[str, str | None] | None = None
    joined: Mapping[str, Any] | None = None
    topology: Topology | None = None
    """Of the atoms that are kept, if the output is to hold it."""
    appended: Appended | None = None
    """What it continues, and takes the place of."""
    repairs: Repairs | None = None
    """Of which output this is a repair."""
    stretches: Sequence[Stretch] = ()
    """Of the frames that cannot be read, those that may be several."""
    former: State | None = None
    """Of the output that it takes the place of, from before it was read; None in stores."""

    def meta(self) -> OutputMeta:
        """Return what the output says of itself."""
        made = output_meta(
            self.files,
            self.view.source.info,
            dt_ps=self.view.info.dt_ps,
            frames=self.view.runs,
            atoms=self.choice.kept,
            groups=self.choice.groups,
            transformed=self.transformed,
            joined=self.joined,
            opened=self.options.sources.source_options,
            topology=self.topology,
            unreadable=self.view.unreadable,
            stretches=self.stretches,
        )
        return replace(made, frame_data=self.view.frame_data(), recipe=self.options.recipe())

    @cached_property
    def beside(self) -> dict[Path, bytes]:
        """The topologies that belong beside the output; they need the source's first frame.

        Those of what is repaired are there.
        """
        if self.repairs or self.choice.universe is None:
            return {}
        return topologies(self.choice, self.out, self.files)
