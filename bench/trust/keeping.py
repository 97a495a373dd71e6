"""What the journal and the checksums of a conversion cost, in processor time.

``python bench/trust/keeping.py SOURCE.xtc`` converts the same file as it is, without a journal, and
without checksums (written and read back), in turn. It prints the median and the least of user and
system time of this process, and the share that each costs. Wall times say little here: a conversion
flushes what it wrote. Where other work disturbs the processor's caches, the least is closer to what
a conversion takes. Records go to bench-output/keeping.jsonl.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from measuring import append_jsonl, summary

import mdio
from mdio.converters.strategies.conversion import Conversion
from mdio.core import kernels

LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "zarr, floats": ("a.zarr", {"precision": "none"}),
    "zarr, integers of the XTC": ("a.zarr", {}),
    "h5md": ("a.h5md", {}),
    "segments of DCD": ("a.segments", {"container": "dcd"}),
}


@contextmanager
def without_journal() -> Iterator[None]:
    real = Conversion._open

    def opened(self: Conversion, *words: Any) -> Any:
        class Unjournaled(self.writer):  # type: ignore[misc, name-defined]
            resumes = False

        writer, self.writer = self.writer, Unjournaled
        try:
            return real(self, *words)
        finally:
            self.writer = writer

    Conversion._open = opened  # type: ignore[method-assign]
    try:
        yield
    finally:
        Conversion._open = real  # type: ignore[method-assign]


@contextmanager
def without_checksums() -> Iterator[None]:
    """Let all checksums be zero wherever they are taken, when writing and when reading."""
    fakes = {
        kernels.crc32c: lambda data, crc=0: 0,  # noqa: ARG005
        kernels.crc32c_pieces: lambda data, edges: np.zeros(len(edges) - 1, np.uint32),  # noqa: ARG005
    }
    changed = []
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()) if "mdio" in module.__name__ else ():
            if callable(value) and getattr(value, "__hash__", None) and value in fakes:
                changed.append((module, name, value))
                setattr(module, name, fakes[value])
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


@contextmanager
def as_it_is() -> Iterator[None]:
    yield


WAYS = {
    "as it is": as_it_is,
    "without a journal": without_journal,
    "without checksums": without_checksums,
}


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(
    source: Path, out: Path, options: dict[str, Any], repeats: int
) -> dict[str, dict[str, float]]:
    """Return the processor time of each way."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for repeat in range(-1, repeats):  # the first round warms up
        for way, changed in WAYS.items():
            with changed():
                begun = cpu_s()
                mdio.convert(source, out, force=True, **options)
                if repeat >= 0:
                    found[way].append(cpu_s() - begun)
    return {way: summary(seconds) for way, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="an XTC file")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", help="where to write; a temporary folder by default")
    parser.add_argument("--output", type=Path, default=Path("bench-output/keeping.jsonl"))
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=given.folder) as base:
        for layout, (name, options) in LAYOUTS.items():
            found = measure(given.source, Path(base, name), options, given.repeats)
            rows.append({"layout": layout, "cpu_s": found})
            for kind in ("median", "min"):
                whole = found["as it is"][kind]
                said = [f"{way[8:]} {1 - found[way][kind] / whole:+.1%}" for way in list(WAYS)[1:]]
                print(f"{layout}, {kind} {whole:.3f} s; of these {', '.join(said)}", flush=True)
    append_jsonl(given.output, rows)


if __name__ == "__main__":
    main()
