"""Instructions that decoders of XTC execute for a frame, counted by callgrind.

Unlike times they are the same on a busy machine. The difference of two runs, of one and of many
passes over the file, leaves out imports and opening. Takes some minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import adk
from peer_commands import MOLLY
from peer_process import HERE, ONE_THREAD, PYTHONS

FRAMES = 98
PASSES = (1, 21)
STEADY = {**os.environ, **ONE_THREAD, "PYTHONHASHSEED": "0"}
"""Threads that wait and dictionaries in other orders would make starts differ."""


def instructions(command: list[str], folder: Path) -> int:
    """Return how many instructions a command executes."""
    out = folder / "callgrind.out"
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
    done = subprocess.run(
        [*valgrind, *command], capture_output=True, text=True, cwd=HERE, env=STEADY
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it failed"])[-1])
    found = re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.MULTILINE)
    out.unlink()
    if found is None:
        raise RuntimeError("callgrind counted nothing")
    return int(found[1])


def commands(path: str, times: int) -> dict[str, list[str]]:
    """Return how each decoder is made to read `path` so many times."""

    def python(module: str, case: str) -> list[str]:
        args = json.dumps({"path": path})
        return [str(PYTHONS[module]), str(HERE / "peer_runner.py"), module, case, args, str(times)]

    return {
        "mdio": python("peer_mdio", "read"),
        "libmdaxdr": python("peer_mdanalysis", "libmdaxdr"),
        "mdtraj": python("peer_mdtraj", "read"),
        "molly": [str(MOLLY), path, "all", "0", str(times)],
    }


def measure(folder: Path) -> list[dict[str, Any]]:
    """Count, print a table and return records."""
    print(
        "\n### Instructions of decoding XTC (callgrind)\n\n| | per atom and frame |\n| --- | ---: |"
    )
    path = str(adk.tiled(folder, 1).resolve())
    records = []
    few, many = (commands(path, times) for times in PASSES)
    for name in few:
        record: dict[str, Any] = {
            "bench": "peers",
            "table": "instructions",
            "system": f"3,341 atoms x {FRAMES} frames",
            "case": name,
        }
        try:
            if shutil.which("valgrind") is None:
                raise RuntimeError("valgrind is not installed")
            counted = instructions(many[name], folder) - instructions(few[name], folder)
        except (RuntimeError, OSError) as error:
            record["reason"] = str(error)
            print(f"| {name} | not measured: {error} |", flush=True)
        else:
            atoms = 3341 * FRAMES * (PASSES[1] - PASSES[0])
            record["instructions_per_atom_frame"] = counted / atoms
            print(f"| {name} | {counted / atoms:,.1f} |", flush=True)
        records.append(record)
    return records
