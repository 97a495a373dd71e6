"""What the journal and the checksums of a conversion cost, of its time and of its processor time.

``python bench/trust/keeping.py SOURCE.xtc`` converts the file again and again, and adds up the time
of each call that takes a checksum (of what is written and of what is read back) and of each that
keeps the journal. Whole conversions with and without them vary by more than they cost. The program
prints medians of the shares. Records go to bench-output/keeping.jsonl.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import append_jsonl, summary

import mdio
from mdio.core import kernels
from mdio.core.files.journal import Journal

LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "zarr, floats": ("a.zarr", {"precision": "none"}),
    "zarr, integers of the XTC": ("a.zarr", {}),
    "h5md": ("a.h5md", {}),
    "segments of DCD": ("a.segments", {"storage": mdio.Storage(container="dcd")}),
}
spent: Counter[str] = Counter()
"""Seconds in all calls since it was cleared: of the clock, and of the processor."""


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same and adds its time to `spent`."""

    def call(*words: Any, **options: Any) -> Any:
        begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
        try:
            return function(*words, **options)
        finally:
            spent[f"{name}, cpu"] += time.thread_time() - begun_cpu_s
            spent[f"{name}, clock"] += time.perf_counter() - begun_s

    return call


def time_calls() -> None:
    """Let all checksums and all calls of journals be timed, wherever they are made."""
    sums = [kernels.crc32c, kernels.crc32c_spans]
    for module in [module for name, module in sys.modules.items() if "mdio" in name]:
        for name, value in list(vars(module).items()):
            if any(value is one for one in sums):
                setattr(module, name, timed("checksums", value))
    for name in ("__init__", "add", "close"):
        setattr(Journal, name, timed("journal", getattr(Journal, name)))


def convert(source: Path, out: Path, options: dict[str, Any]) -> dict[str, float]:
    """Convert once; return the shares of the clock's and of the processor's time."""
    spent.clear()
    before, begun_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    mdio.convert(source, out, force=True, **options)
    clock_s, after = time.perf_counter() - begun_s, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    whole = {"clock": clock_s, "cpu": cpu_s}
    return {name: used / whole[name.rpartition(", ")[2]] for name, used in spent.items()} | whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="an XTC file")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", help="where to write; a temporary folder by default")
    parser.add_argument("--output", type=Path, default=Path("bench-output/keeping.jsonl"))
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=given.folder) as base:
        for name, options in LAYOUTS.values():  # imports what it needs, and warms up
            mdio.convert(given.source, Path(base, name), **options, force=True)
        time_calls()
        for layout, (name, options) in LAYOUTS.items():
            runs = [convert(given.source, Path(base, name), options) for _ in range(given.repeats)]
            found = {key: summary([run[key] for run in runs]) for key in runs[0]}
            rows.append({"layout": layout, "shares": found})
            said = [
                f"{found[kind]['median']:.2f} s of {word}: checksums "
                f"{found[f'checksums, {kind}']['median']:.1%}, journal "
                f"{found[f'journal, {kind}']['median']:.1%}"
                for kind, word in (("clock", "time"), ("cpu", "the processor"))
            ]
            print(f"{layout}, {'; '.join(said)}", flush=True)
    append_jsonl(given.output, rows)


if __name__ == "__main__":
    main()
