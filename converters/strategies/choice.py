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
from mdio.core.options import flag
from mdio.layouts.chunk_shapes import PATTERNS
from mdio.layouts.registry import writable_layouts, writer_class


def check_options(options: ConversionOptions, layout: str, out: Path) -> None:
    """Refuse what a layout does not have, or what does not go together; raises PlanError."""
    has = writer_class(layout).facts.own_options
    for one, value in options.asked_for():
        if not one.metadata.get("own") or one.name in has:
            continue
        every = {name: writer_class(name).facts.own_options for name in writable_layouts()}
        others = sorted(name for name, theirs in every.items() if one.name in theirs)
        where = f"layout{'s' if len(others) > 1 else ''} {' and '.join(others)}"
        raise PlanError(
            f"{out}: {flag(one, value)} belongs to the {where}, not to {layout}; leave it out, or "
            "choose another output"
        )
    if options.storage.pattern is not None and options.storage.pattern not in PATTERNS:
        raise PlanError(f"--for {options.storage.pattern}: give one of {', '.join(PATTERNS)}")


def choose(job: Job) -> Conversion:
    """Return the planned conversion; raises what the `planned` of its strategy raises."""
    facts, mpio = job.writer.facts, job.options.running.mpio
    if facts.points:
        return Pointing.planned(job)
    copied = None if facts.copier is None else CopiedBytes.planned(job, facts.copier)
    if copied is not None:
        return copied
    if mpio is not None and facts.through_mpi is not None:
        return MPIOConversion.planned(job, mpio, facts.through_mpi)
    return Conversion(job, job.plan)
