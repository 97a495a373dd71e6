"""The commands that do what is advised, as one would type them."""

from __future__ import annotations

import shlex
from pathlib import Path

from mdio.advisor.decide.decision import Recommended
from mdio.advisor.measure.measurements import Measurements, Trial


def commands_for(
    measurements: Measurements,
    chosen: Trial,
    recommended: Recommended,
    *,
    is_local: bool,
    ranks: int,
    n_nodes: int = 1,
) -> list[str]:
    """Return the conversion or the copies, where there are any, and the analysis."""
    sources = list(measurements.source.paths)
    found = []
    if chosen.layout == "local-copy":
        folder = Path(measurements.question.local_folder or "/tmp")
        words = ["cp", *sources, str(folder)]
        if n_nodes > 1:
            words = ["mpiexec", "-n", str(n_nodes), "-ppn", "1", *words]
        found.append(shlex.join(words))
        sources = [str(folder / Path(path).name) for path in sources]
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
