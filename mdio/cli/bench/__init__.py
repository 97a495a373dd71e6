"""``mdio bench``: measure on your own machine and data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from mdio.cli.shared.common import parse_nbytes, positive

BENCHES = {
    "scaling": "the same analysis on more and more workers: speed-up, efficiency, components",
    "gather": "three ways for ranks to bring their rows together, by size and number of ranks",
    "layouts": "writing and reading each layout, by ways to write, workers, chunks, stripes",
    "darshan": "what Darshan counted in a run, by module, beside what mdio did",
    "scheduler": "throughput of many empty tasks: processes, threads, Dask",
}
"""Each is a module ``mdio.cli.bench.NAME`` with ``setup(parser)`` and ``run(args)``."""


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the benches, with their own options."""
    benches = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    for name, text in BENCHES.items():
        chosen = benches.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        import_module(f"mdio.cli.bench.{name}").setup(chosen)


def run(args: argparse.Namespace) -> int:
    """Run the bench that was chosen."""
    return int(import_module(f"mdio.cli.bench.{args.bench}").run(args))


def positives(text: str) -> list[int]:
    """Return whole numbers of at least 1, separated by commas."""
    return [positive(part) for part in text.split(",")]


def sizes(text: str) -> list[int]:
    """Return numbers of bytes, separated by commas: ``1K,1M``."""
    return [parse_nbytes(part) for part in text.split(",")]


def one_of(names: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a parser of names separated by commas."""

    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in names:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is none of {', '.join(names)}; separate several by commas"
                )
        return text.split(",")

    return parse
