"""What the benches share: repeats in turn, medians, provenance, JSON lines."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mdio.analysis import scaling
from mdio.cli.common import parse_nbytes
from mdio.core.errors import MdioError, PlanError


def in_turn(cases: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each case, run in turn (a b c a b c ...) so that drift hits all."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            begun = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - begun)
    return seconds


def summary(seconds: list[float], per: float = 1.0) -> dict[str, float]:
    """Return minimum, median and maximum, divided by `per`."""
    return {
        "min": min(seconds) / per,
        "median": statistics.median(seconds) / per,
        "max": max(seconds) / per,
    }


def provenance() -> dict[str, Any]:
    """Return where and with what a figure was measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    ).stdout.strip()
    return {**scaling.provenance(), "commit": commit}


def append_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append records, each with its provenance, to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    where = provenance()
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps({**row, "provenance": where}) + "\n")


def sizes(text: str) -> list[int]:
    """Return numbers of bytes, separated by commas: ``1K,1M``."""
    return [parse_nbytes(part) for part in text.split(",")]


def run_bench(
    about: str,
    setup: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
    words: list[str] | None = None,
) -> int:
    """Parse the command line of a script, run it; return the exit code, as ``mdio`` has them."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    setup(parser)
    args = parser.parse_args(words)
    try:
        return run(args)
    except MdioError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2 if isinstance(error, PlanError) else 1
