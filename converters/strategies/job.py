"""What is to be made, of what: strategies are asked whether they are the one for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mdio.converters.options import ConversionOptions
from mdio.converters.provenance import Appended
from mdio.converters.selection import AtomChoice
from mdio.converters.storage import StripeRequest
from mdio.converters.strategies.repairs import Repairs
from mdio.core.topology.topology import Topology
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import LayoutWriter


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
