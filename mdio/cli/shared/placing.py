"""Options of how an output lies on disk."""

from __future__ import annotations

import argparse

from mdio.cli.shared.common import auto_or_positive, parse_nbytes, parse_stripes, positive
from mdio.layouts.chunk_shapes import PATTERNS


def add_placing(parser: argparse.ArgumentParser) -> None:
    """Add them, in a group of their own."""
    place = parser.add_argument_group("how it lies on disk")
    place.add_argument(
        "--for",
        dest="pattern",
        choices=PATTERNS,
        help="h5md, zarr: how it will be read: single frames in any order, blocks of whole frames "
        "(default), the same selection of neighbouring atoms, time series of each atom",
    )
    place.add_argument(
        "--chunk-frames", type=auto_or_positive, metavar="N|auto", help="frames in a chunk"
    )
    place.add_argument(
        "--chunk-atoms", type=auto_or_positive, metavar="N|auto", help="atoms in a chunk"
    )
    place.add_argument(
        "--contiguous",
        action="store_true",
        help="h5md: each array in one piece, without chunks (--chunk-frames is then how many "
        "frames share a checksum)",
    )
    place.add_argument(
        "--container",
        choices=("xtc", "trr", "dcd", "ncdf"),
        help="format of the segments (default: that of the source)",
    )
    place.add_argument(
        "--flavour",
        choices=("gromacs",),
        help="h5md: in the units and under the names that GROMACS 2026 reads",
    )
    place.add_argument("--segments", type=positive, metavar="N", help="number of segments")
    place.add_argument(
        "--stripe-size",
        dest="stripe_nbytes",
        type=parse_nbytes,
        metavar="SIZE",
        help="stripe that chunks should fit, and Lustre is asked for (default: what the folder of "
        "OUT has on Lustre, else 1M)",
    )
    place.add_argument(
        "--direct",
        choices=("on", "off", "auto"),
        default="auto",
        help="on: large writes go past the page cache (auto: if OUT is on a disk of this machine "
        "and larger than a quarter of the memory that is available)",
    )
    counts = place.add_mutually_exclusive_group()
    counts.add_argument("--stripe-count", type=int, metavar="N", help="stripes, -1 for all targets")
    counts.add_argument(
        "--progressive",
        type=parse_stripes,
        metavar="END:N,...,-1:N",
        help="stripes that grow with the file on Lustre: 1G:1,-1:8 is one up to 1 GiB, then eight",
    )
