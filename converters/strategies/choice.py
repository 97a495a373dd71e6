"""Which strategy makes an output: what its layout and the source can do decides."""

from __future__ import annotations

from pathlib import Path

from mdio.converters.options import ConversionOptions
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.copied import CopiedBytes
from mdio.converters.strategies.job import Job
from mdio.converters.strategies.mpio import MPIOConversion
from mdio.converters.strategies.pointing import Pointing
from mdio.core.errors import PlanError
from mdio.layouts.chunk_shapes import PATTERNS
from mdio.layouts.registry import writable_layouts, writer_class
from mdio.parallel.executors import Executor

STRATEGIES: tuple[type[Conversion], ...] = (
    Pointing,
    CopiedBytes,
    MPIOConversion,
    Conversion,
)
"""In the order in which they are asked; the last makes whatever can be made."""
OWN = {
    "container": "--container",
    "segments": "--segments",
    "chunk_frames": "--chunk-frames",
    "chunk_atoms": "--chunk-atoms",
    "pattern": "--for",
    "contiguous": "--contiguous",
    "mpio": "--mpio",
}
"""Options that not every layout has."""


def check_options(options: ConversionOptions, layout: str, out: Path) -> None:
    """Refuse what a layout does not have, or what does not go together; raises PlanError."""
    has = writer_class(layout).own_options
    asked = [name for name in OWN if getattr(options, name) and name not in has]
    if asked:
        every = {name: writer_class(name).own_options for name in writable_layouts()}
        others = sorted(name for name, theirs in every.items() if asked[0] in theirs)
        where = f"layout{'s' if len(others) > 1 else ''} {' and '.join(others)}"
        option = "--collective" if options.mpio == "collective" else OWN["mpio"]
        option = option if asked[0] == "mpio" else OWN[asked[0]]
        raise PlanError(
            f"{out}: {option} belongs to the {where}, not to {layout}; leave it out, or "
            "choose another output"
        )
    if options.pattern is not None and options.pattern not in PATTERNS:
        raise PlanError(f"--for {options.pattern}: give one of {', '.join(PATTERNS)}")


def choose(job: Job, executor: Executor) -> Conversion:
    """Return the planned conversion; raises what `Conversion.planned` raises."""
    made = (strategy.planned(job, executor) for strategy in STRATEGIES)
    return next(one for one in made if one is not None)
