"""``mdio bench darshan``: what Darshan counted in a run, beside what mdio did."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mdio.cli.shared.common import add, print_json
from mdio.core.errors import MissingExtraError, SourceError
from mdio.core.words import duration, human_nbytes

PREFIXES = {"POSIX": "POSIX", "MPI-IO": "MPIIO", "STDIO": "STDIO", "H5D": "H5D"}
"""Darshan's modules whose counters are read, and how the names of these begin."""
OPENS = ("OPENS", "INDEP_OPENS", "COLL_OPENS")
READS = ("READS", "INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS")
WRITES = ("WRITES", "INDEP_WRITES", "COLL_WRITES", "SPLIT_WRITES", "NB_WRITES")


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("log", metavar="LOG", help="what Darshan wrote of a run")
    add(parser, "--files TEXT", "count files only whose path has this in it", default="")
    add(parser, "--timings FILE", "what `mdio analyze --timings` wrote of the same run")
    add(parser, "--json", "print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Read both, print."""
    modules = counters(args.log, args.files)
    ours = None
    if args.timings:
        try:
            ours = int(json.loads(Path(args.timings).read_text())["nbytes_source"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{args.timings}: no timings of `mdio analyze --timings` ({error})"
            ) from error
    if args.json:
        print_json({"modules": modules, "nbytes_source": ours})
        return 0
    print(
        f"{'':<8}{'opens':>9}{'reads':>11}{'read':>13}{'writes':>11}{'written':>13}{'reading':>11}"
    )
    for name, row in modules.items():
        print(
            f"{name:<8}{row['opens']:>9,}{row['reads']:>11,}{human_nbytes(row['nbytes_read']):>13}"
            f"{row['writes']:>11,}{human_nbytes(row['nbytes_written']):>13}"
            f"{duration(row['t_read_s']):>11}"
        )
    if ours is not None:
        rest = modules.get("POSIX", {}).get("nbytes_read", 0) - ours
        print(
            f"mdio counted {human_nbytes(ours)} read of files by its blocks; "
            + (
                f"the other {human_nbytes(rest)} were read to open, index and prepare"
                if rest >= 0
                else "more than Darshan saw: give the log of the same run, and a wider --files"
            )
        )
    return 0


def counters(log: str, files: str = "") -> dict[str, dict[str, Any]]:
    """Return the sums over ranks and files of each of Darshan's modules.

    Raises MissingExtraError: there is no pydarshan. SourceError: no log.
    """
    try:
        import darshan
    except ImportError as error:
        raise MissingExtraError(
            "mdio bench darshan needs pydarshan: pip install 'mdio-layouts[darshan]'"
        ) from error
    try:
        report = darshan.DarshanReport(log, read_all=False)
    except (OSError, RuntimeError) as error:
        raise SourceError(f"{log}: no log of Darshan ({error})") from error
    found = {}
    for module, prefix in PREFIXES.items():
        if module not in report.modules:
            continue
        report.mod_read_all_records(module)
        names = report.name_records
        frames = report.records[module].to_df()
        counts, times = (frames[kind] for kind in ("counters", "fcounters"))
        kept = [files in names.get(int(number), "") for number in counts["id"]]
        counts, times = counts[kept], times[kept]

        def total(*names: str, of: Any = counts, prefix: str = prefix) -> int:
            return sum(int(of[f"{prefix}_{n}"].sum()) for n in names if f"{prefix}_{n}" in of)

        found[module] = {
            "opens": total(*OPENS),
            "reads": total(*READS),
            "nbytes_read": total("BYTES_READ"),
            "writes": total(*WRITES),
            "nbytes_written": total("BYTES_WRITTEN"),
            "t_read_s": float(times[f"{prefix}_F_READ_TIME"].sum()),
        }
    return found
