"""What Darshan counted in a run, by module, beside what mdio counted.

``python bench/darshan_log.py LOG --files md.xtc --timings times.json`` (``pip install
'mdio-layouts[darshan]'``): opens, reads and bytes in the log of the run, and those that ``mdio
analyze --timings times.json`` saved of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measuring import run_bench

from mdio.cli.common import add, print_json
from mdio.core.errors import MissingExtraError, SourceError
from mdio.core.words import duration, human_nbytes

MODULE_PREFIXES = {"POSIX": "POSIX", "MPI-IO": "MPIIO", "STDIO": "STDIO", "H5D": "H5D"}
"""Darshan's modules whose counters are read, and the prefixes of the counters' names."""
OPEN_COUNTERS = ("OPENS", "INDEP_OPENS", "COLL_OPENS")
READ_COUNTERS = ("READS", "INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS")
WRITE_COUNTERS = ("WRITES", "INDEP_WRITES", "COLL_WRITES", "SPLIT_WRITES", "NB_WRITES")


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("log", metavar="LOG", help="log that Darshan wrote of a run")
    add(parser, "--files TEXT", "count only files whose path contains this", default="")
    add(parser, "--timings FILE", "what `mdio analyze --timings` wrote of the same run")
    add(parser, "--json", "print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Read the log and the timings, and print them."""
    modules = counters(args.log, args.files)
    mdio_nbytes = None
    if args.timings:
        try:
            mdio_nbytes = int(json.loads(Path(args.timings).read_text())["nbytes_source"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{args.timings}: not timings of `mdio analyze --timings` ({error})"
            ) from error
    if args.json:
        print_json({"modules": modules, "nbytes_source": mdio_nbytes})
        return 0
    print(
        f"{'':<8}{'opens':>9}{'reads':>11}{'read':>13}{'writes':>11}{'written':>13}"
        f"{'read time':>11}"
    )
    for name, row in modules.items():
        print(
            f"{name:<8}{row['opens']:>9,}{row['reads']:>11,}{human_nbytes(row['nbytes_read']):>13}"
            f"{row['writes']:>11,}{human_nbytes(row['nbytes_written']):>13}"
            f"{duration(row['t_read_s']):>11}"
        )
    if mdio_nbytes is not None:
        other_nbytes = modules.get("POSIX", {}).get("nbytes_read", 0) - mdio_nbytes
        print(
            f"mdio counted {human_nbytes(mdio_nbytes)} read from files by its blocks; "
            + (
                f"the other {human_nbytes(other_nbytes)} were read to open, index and prepare"
                if other_nbytes >= 0
                else "more than Darshan saw: give the log of the same run, and a wider --files"
            )
        )
    return 0


def counters(log: str, files: str = "") -> dict[str, dict[str, Any]]:
    """Return the sums over ranks and files of each of Darshan's modules.

    Raises MissingExtraError: pydarshan is not installed. SourceError: `log` is not a log of
    Darshan.
    """
    try:
        import darshan
    except ImportError as error:
        raise MissingExtraError(
            "bench/darshan_log.py needs pydarshan: pip install 'mdio-layouts[darshan]'"
        ) from error
    try:
        report = darshan.DarshanReport(log, read_all=False)
    except (OSError, RuntimeError) as error:
        raise SourceError(f"{log}: not a log of Darshan ({error})") from error
    sums = {}
    for module, prefix in MODULE_PREFIXES.items():
        if module not in report.modules:
            continue
        report.mod_read_all_records(module)
        paths_by_id = report.name_records
        tables = report.records[module].to_df()
        counts, times = (tables[kind] for kind in ("counters", "fcounters"))
        selected = [files in paths_by_id.get(int(number), "") for number in counts["id"]]
        counts, times = counts[selected], times[selected]

        def total(*counter_names: str, table: Any = counts, prefix: str = prefix) -> int:
            columns = (f"{prefix}_{name}" for name in counter_names)
            return sum(int(table[column].sum()) for column in columns if column in table)

        sums[module] = {
            "opens": total(*OPEN_COUNTERS),
            "reads": total(*READ_COUNTERS),
            "nbytes_read": total("BYTES_READ"),
            "writes": total(*WRITE_COUNTERS),
            "nbytes_written": total("BYTES_WRITTEN"),
            "t_read_s": float(times[f"{prefix}_F_READ_TIME"].sum()),
        }
    return sums


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, setup, run))
