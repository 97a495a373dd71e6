"""Options of how an output lies on disk."""

from __future__ import annotations

import argparse

from mdio.cli.shared.common import add, auto_or_positive, parse_nbytes, parse_stripes, positive
from mdio.layouts.chunk_shapes import PATTERNS


def add_placing(parser: argparse.ArgumentParser) -> None:
    """Add them, in a group of their own."""
    place = parser.add_argument_group("how it lies on disk")
    add(
        place,
        "--for",
        "h5md, zarr: how it will be read: single frames in any order, blocks of whole frames "
        "(default), the same selection of neighbouring atoms, time series of each atom",
        dest="pattern",
        choices=PATTERNS,
    )
    add(place, "--chunk-frames N|auto", "frames in a chunk", auto_or_positive)
    add(place, "--chunk-atoms N|auto", "atoms in a chunk", auto_or_positive)
    add(
        place,
        "--contiguous",
        "h5md: each array in one piece, without chunks (--chunk-frames is then how many "
        "frames share a checksum)",
    )
    add(
        place,
        "--container",
        "format of the segments (default: that of the source)",
        choices=("xtc", "trr", "dcd", "ncdf"),
    )
    add(
        place,
        "--flavour",
        "h5md: in the units and under the names that GROMACS 2026 reads",
        choices=("gromacs",),
    )
    add(place, "--segments N", "number of segments", positive)
    add(
        place,
        "--stripe-size SIZE",
        "stripe that chunks should fit, and Lustre is asked for (default: what the folder of "
        "OUT has on Lustre, else 1M)",
        parse_nbytes,
        dest="stripe_nbytes",
    )
    add(
        place,
        "--direct",
        "on: large writes go past the page cache (auto: on a disk of this machine, if OUT is "
        "larger than 1 GiB and the disk takes 1 GB/s, or larger than a quarter of the memory that "
        "is available)",
        choices=("on", "off", "auto"),
        default="auto",
    )
    counts = place.add_mutually_exclusive_group()
    add(counts, "--stripe-count N", "stripes, -1 for all targets", int)
    add(
        counts,
        "--progressive END:N,...,-1:N",
        "stripes that grow with the file on Lustre: 1G:1,-1:8 is one up to 1 GiB, then eight",
        parse_stripes,
    )
