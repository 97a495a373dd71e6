"""mdio beside its peers: the same files, in the same run, in turn, each in its own environment.

``make peers``, or ``python bench/peers/compare.py``, installs the peers (setup.sh), makes the
files, prints Markdown tables and the list of targets reached and not reached, and leaves JSON lines
and a picture in bench-output/peers. It repeats while there is time: ``--minutes`` (8) for all
tables, but never fewer than twice. ``--quick`` (fewer frames, without the largest system, three
repeats) takes about a minute.

How it is measured: every peer has a process of its own, which is asked in turn with the others and
takes the time itself, without imports, opening and topologies (of ``gmx`` and ``mdconvert`` the
whole is taken, less that of the same command on one frame). All are held to one core. The page
cache is warm, but for the table that says cold. What is written is flushed to disk within the time,
for all alike; ``--scratch /dev/shm`` leaves the disk out. Ratios are medians of the ratios of the
repeats. What readers give is compared, and one that gave other numbers is named. On a machine that
others use too, ``--cpu`` compares CPU time. The least user CPU time stands beside each: what is
written to a disk or read from it does not change it (of programs that are started each time,
``gmx``, ``mdconvert`` and molly, it includes their start). Conversions stand beside a control that
only writes as many bytes into a new file.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import append_jsonl
from peers import callgrind, report
from peers.cases import COLD, TABLES, two_workers
from peers.process import Case, NotMeasuredError, Peers
from peers.runner import files_of, remove
from peers.systems import System, make, small_system, systems
from peers.targets import judge

Record = dict[str, Any]
FEWEST_REPEATS = 2
COUNTING_S = 60.0
"""What is kept of the time for callgrind."""
SLOW_S, SLOW_REPEATS = 3.0, 3
"""Cases that take longer than this are repeated so often at most."""
TWO_WORKERS_S = 36.0
"""What the conversion by one worker should take at least, with some to spare."""
NUMBER_TOLERANCE = 2e-3
"""Angstrom by which mean results of peers may differ: one rounds in nm, one keeps float32."""


def timed(
    peers: Peers,
    table: str,
    system: System,
    cases: list[Case],
    args: argparse.Namespace,
    cold: bool = False,
    share_s: float = math.inf,
) -> list[Record]:
    """Have the cases timed in turn, for about `share_s`, and return a record for each."""
    begun = time.monotonic()
    records: dict[str, Record] = {}
    for case in cases:
        records[case.name] = {
            "bench": "peers",
            "table": table,
            "system": system.title,
            "case": case.name,
            "n_atoms": system.n_atoms,
            "n_frames": system.n_frames,
            "wall_seconds": [],
            "cpu_seconds": [],
            "user_seconds": [],
        }
        if "frames" in case.args:
            records[case.name]["n_frames"] = system.n_random
    for repeat in range(args.repeats):
        if repeat >= FEWEST_REPEATS and time.monotonic() - begun > share_s:
            break
        for case in cases:
            record = records[case.name]
            slow = repeat >= SLOW_REPEATS and max(record["wall_seconds"], default=0) > SLOW_S
            if slow or "reason" in record:
                continue
            try:
                answer = peers.ask(case, cold=cold)
            except NotMeasuredError as error:
                record["reason"] = str(error)
                continue
            record["wall_seconds"].append(answer["seconds"])
            record["cpu_seconds"].append(answer["cpu_seconds"])
            record["user_seconds"].append(answer["user_seconds"])
            record["number"] = answer["number"]
            if cold:
                record["cold"] = record.get("cold", True) and answer["cold"]
    for case in cases:
        record = records[case.name]
        if "reason" not in record:
            record["seconds"] = record["cpu_seconds" if args.cpu else "wall_seconds"]
        if "out" in case.args:
            out = Path(case.args["out"])
            remove(out)
            remove(out.with_name(f"one.{out.name}"))
    peers.forget()
    return list(records.values())


def warn_of_other_numbers(records: list[Record]) -> None:
    """Print which cases of a table did not give what the first gave."""
    numbers = {r["case"]: r["number"] for r in records if r.get("number") is not None}
    for name, number in numbers.items():
        expected = next(iter(numbers.values()))
        coarse = 0.005 if "precision" in name or "mdz" in name else 0.0
        if abs(number - expected) > NUMBER_TOLERANCE + coarse:
            print(f"\nOTHER RESULT: {name} gave {number:.5f}, not {expected:.5f}")


def sizes(system: System, problems: dict[str, str]) -> list[Record]:
    """Return the sizes of all files made from one XTC."""
    xtc = system.xtc.stat().st_size
    names = {
        "XTC": system.xtc,
        "zarr --precision 0.01": Path(system.made("step.zarr")),
        "zarr --precision auto": Path(system.made("auto.zarr")),
        "zarr": Path(system.made("zarr")),
        "h5md": Path(system.made("h5md")),
        "mdz": Path(system.made("mdz")),
        "zarrmd": Path(system.made("zarrmd")),
        "zarrmd, 3 digits of nm, zstd 9": Path(system.made("digits.zarrmd")),
        "dcd": Path(system.made("dcd")),
    }
    records = []
    for name, path in names.items():
        record: Record = {
            "bench": "peers",
            "table": "size",
            "system": system.title,
            "case": name,
            "n_atoms": system.n_atoms,
            "n_frames": system.n_frames,
            "xtc": xtc,
        }
        if path.exists():
            record["nbytes"] = sum(file.stat().st_size for file in files_of(path))
        else:
            suffix = path.name.removeprefix("made.")
            record["reason"] = problems.get(suffix, "it was not made")
        records.append(record)
    return records


def measure(peers: Peers, args: argparse.Namespace) -> list[Record]:
    """Run all tables and return their records."""
    records: list[Record] = []
    ends = time.monotonic() + 60 * args.minutes - COUNTING_S
    chosen_systems = systems(args.folder, args.scratch, args.quick, args.tiny)
    n_left = len(chosen_systems) * (len(TABLES) + 1)
    for system in chosen_systems:
        problems = make(system, peers)
        for name, table in TABLES.items():
            cases = table(system)
            share_s = (ends - time.monotonic()) / n_left
            n_left -= 1
            if not cases or (args.only and name not in args.only):
                continue
            if args.tiny:
                cases = [
                    case
                    for case in cases
                    if case.module in ("peers.peer_mdio", "peers.peer_mdanalysis")
                ]
            found = timed(peers, name, system, cases, args, share_s=share_s)
            title = (table.__doc__ or name).rstrip(".")
            print(report.table(title, system.title, found), flush=True)
            warn_of_other_numbers(found)
            records += found
            if name == "decode" and not args.only and not args.tiny:
                n_left -= 1
                chosen = [case for case in cases if case.name in COLD]
                found = timed(
                    peers, "decode, cold", system, chosen, args, cold=True, share_s=share_s
                )
                print(report.table(f"{title}, cold", system.title, found), flush=True)
                records += found
        if not args.only or "size" in args.only:
            found = sizes(system, problems)
            print(report.size_table(system.title, found), flush=True)
            records += found
    return records


def measure_two_workers(peers: Peers, args: argparse.Namespace) -> list[Record]:
    """Convert with one worker, so much that it takes over 30 s, and with two."""
    system = small_system(args.folder, args.scratch, tiles=50)
    probe = timed(peers, "two workers", system, two_workers(system, 5)[:1], args)[0]
    seconds_each = min(probe["seconds"]) / 5
    n_copies = math.ceil(TWO_WORKERS_S / seconds_each)
    longer = replace(
        system,
        title=f"{system.n_atoms:,} atoms x {system.n_frames * n_copies:,} frames",
        n_frames=system.n_frames * n_copies,
    )
    found = timed(peers, "two workers", longer, two_workers(system, n_copies), args)
    title = "XTC to zarr --precision 0.01, two workers beside one"
    print(report.table(title, longer.title, found), flush=True)
    return found


def set_up() -> None:
    """Install what can be installed; what cannot is said when it is missed."""
    script = Path(__file__).parent / "setup.sh"
    subprocess.run([str(script)], check=False, env={**os.environ, "PYTHON": sys.executable})


def main() -> int:
    """Install, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--tiny", action="store_true", help="seconds: whether it still works")
    parser.add_argument("--only", nargs="+", metavar="TABLE", choices=[*TABLES, "size"])
    parser.add_argument("--repeats", type=int, help="of each case (5, or 3 with --quick)")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all tables")
    parser.add_argument("--two-workers", action="store_true", help="also a long conversion")
    parser.add_argument(
        "--callgrind", action="store_true", help="count instructions also in short runs"
    )
    parser.add_argument("--no-setup", action="store_true", help="install nothing")
    parser.add_argument("--cpu", action="store_true", help="compare CPU time, not wall time")
    parser.add_argument("--scratch", type=Path, help="where conversions write, if not in --folder")
    parser.add_argument("--folder", type=Path, default=Path("bench-output/peers"))
    args = parser.parse_args()
    if args.repeats is None:
        args.repeats = 1 if args.tiny else 3 if args.quick else 5
    if not args.no_setup and not args.tiny:
        set_up()
    args.folder.mkdir(parents=True, exist_ok=True)
    peers = Peers()
    try:
        records = measure(peers, args)
        if args.two_workers:
            records += measure_two_workers(peers, args)
        if args.callgrind or not (args.quick or args.tiny or args.only):
            records += callgrind.measure(args.folder)
        records += judge(records)
        versions = peers.versions()
    finally:
        peers.close()
    print(report.verdict_table([r for r in records if r["table"] == "targets"]))
    print("\nversions:", ", ".join(f"{k} {v}" for k, v in sorted(versions.items())))
    append_jsonl(args.folder / "peers.jsonl", [{**r, "peers": versions} for r in records])
    report.draw(records, args.folder / "peers.png")
    print(f"JSON lines and a picture are in {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
