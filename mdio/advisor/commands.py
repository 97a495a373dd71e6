"""The commands that do what is advised, as one would type them."""

from __future__ import annotations

import shlex
from pathlib import Path

from mdio.advisor.advice import Recommended
from mdio.advisor.measured import Measurements, Trial

__all__ = ["commands_for"]


def commands_for(
    measurements: Measurements,
    chosen: Trial,
    recommended: Recommended,
    *,
    is_local: bool,
    ranks: int,
) -> list[str]:
    """Return the conversion, where there is one, and the analysis."""
    sources = list(measurements.source.paths)
    found = []
    if chosen.layout == "local-copy":
        found.append(shlex.join(["cp", *sources, "$TMPDIR/"]).replace("'$TMPDIR/'", '"$TMPDIR"/'))
        sources = [f"$TMPDIR/{Path(path).name}" for path in sources]
    elif chosen.layout != "as-is":
        stem = Path(sources[0]).name.split(".")[0] or "trajectory"
        out = str(Path(measurements.question.target) / f"{stem}.{chosen.layout}")
        found.append(_convert(measurements, chosen, recommended, sources, out, is_local, ranks))
        sources = [out]
    found.append(_analyze(measurements, recommended, sources, is_local))
    return found


def _convert(
    measurements: Measurements,
    chosen: Trial,
    recommended: Recommended,
    sources: list[str],
    out: str,
    is_local: bool,
    ranks: int,
) -> str:
    words = ["mdio", "convert", *sources, out]
    top = measurements.question.top
    if chosen.groups and top is not None:
        words += ["-s", top]
    for option, value in chosen.convert_options.items():
        words += [option, value]
    if recommended.segments is not None:
        words += ["--segments", str(recommended.segments)]
    if recommended.stripe["count"] is not None:
        words += ["--stripe-count", str(recommended.stripe["count"])]
    if is_local:
        words += ["-w", str(min(ranks, measurements.host.cores))]
    else:
        words = ["mpiexec", "-n", str(ranks), *words, "--mpi"]
    return shlex.join(words)


def _analyze(
    measurements: Measurements, recommended: Recommended, sources: list[str], is_local: bool
) -> str:
    question = measurements.question
    words = ["mdio", "analyze", question.analysis, *sources]
    if question.top is not None:
        words += ["-s", question.top]
    if question.select is not None:
        words += ["--select", question.select]
    for option, value in question.options.items():
        words += [option, value]
    if recommended.blocks_per_worker > 1:
        words += ["--blocks-per-worker", str(recommended.blocks_per_worker)]
    if not is_local:
        words += ["--executor", "mpi", "--gather", recommended.gather]
        words = ["mpiexec", "-n", str(recommended.ranks), *words]
    elif recommended.ranks > 1:
        words += ["-w", str(recommended.ranks)]
    return shlex.join([*words, "-o", "result.npz"]).replace("'$TMPDIR/", '"$TMPDIR"/\'')
