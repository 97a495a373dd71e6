"""Instructions that decoders of XTC execute for a frame, counted by callgrind.

Unlike times they are the same on a busy machine. Imports and opening are left out: Python is told
to count later, and of other programs the difference of two runs is taken, of one and of many passes
over the file. Takes about a minute.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import adk
from peers.peer_commands import MOLLY
from peers.process import HERE, ONE_THREAD, PYTHONS

FRAMES = 98
PASSES = 10
STEADY = {**os.environ, **ONE_THREAD, "PYTHONHASHSEED": "0"}
"""Threads that wait and dictionaries in other orders would make starts differ."""


def instructions(command: list[str], folder: Path, *, at_start: bool) -> int:
    """Return how many instructions a command executes, from its start on or as it says itself."""
    out = folder.resolve() / "callgrind.out"  # the command runs in another folder
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
    if not at_start:
        valgrind.append("--instr-atstart=no")
    done = subprocess.run(
        [*valgrind, *command], capture_output=True, text=True, cwd=HERE, env=STEADY
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it failed"])[-1])
    found = re.search(r"^totals: (\d+)", out.read_text(), re.MULTILINE)
    out.unlink()
    if found is None:
        raise RuntimeError("callgrind counted nothing")
    return int(found[1])


def of_python(module: str, case: str, path: str, folder: Path) -> int:
    """Return the instructions of `PASSES` passes by a case of a peer in Python."""
    command = [str(PYTHONS[module]), str(HERE / "runner.py"), module, case]
    command += [json.dumps({"path": path}), str(PASSES)]
    return instructions(command, folder, at_start=False)


def of_molly(path: str, folder: Path) -> int:
    """Return the instructions of `PASSES` passes by molly."""
    one, more = (
        instructions([str(MOLLY), path, "all", "0", str(times)], folder, at_start=True)
        for times in (1, 1 + PASSES)
    )
    return more - one


def measure(folder: Path) -> list[dict[str, Any]]:
    """Count, print a table and return records."""
    print(
        "\n### Instructions of decoding XTC (callgrind)\n\n| | per atom and frame |\n| --- | ---: |"
    )
    path = str(adk.tiled(folder, 1).resolve())
    records = []
    decoders = {
        "mdio": partial(of_python, "peers.peer_mdio", "read"),
        "libmdaxdr": partial(of_python, "peers.peer_mdanalysis", "libmdaxdr"),
        "mdtraj": partial(of_python, "peers.peer_mdtraj", "read"),
        "molly": of_molly,
    }
    for name, count in decoders.items():
        record: dict[str, Any] = {
            "bench": "peers",
            "table": "instructions",
            "system": f"3,341 atoms x {FRAMES} frames",
            "case": name,
        }
        try:
            if shutil.which("valgrind") is None:
                raise RuntimeError("valgrind is not installed")
            counted = count(path, folder)
        except (RuntimeError, OSError) as error:
            record["reason"] = str(error)
            print(f"| {name} | not measured: {error} |", flush=True)
        else:
            atoms = 3341 * FRAMES * PASSES
            record["instructions_per_atom_frame"] = counted / atoms
            print(f"| {name} | {counted / atoms:,.1f} |", flush=True)
        records.append(record)
    return records
