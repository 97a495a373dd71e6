"""A few rounds of each harness of docs/trust.md, and what their judges have to see.

More rounds with the commands that stand there.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import mutants
import mutated
import numpy as np
import pytest

import mdio
from mdio.core.errors import SourceError

ROUNDS = {
    "races.py": 15,
    "power_cuts.py": 11,
    "faults.py": 22,
    "read_faults.py": 132,
    "flips.py": 26,
}
KILLS = os.environ.get("MDIO_KILL_ROUNDS", "22")
MUTANTS = int(os.environ.get("MDIO_TRUST_ROUNDS", "480"))


def told_by(name, rounds):
    words = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(name))]
    done = subprocess.run([*words, "--rounds", rounds], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["failures"] == []
    return told["found"]


@pytest.mark.parametrize("name", ROUNDS)
def test_a_few_rounds(name):
    rounds = os.environ.get("MDIO_TRUST_ROUNDS", str(ROUNDS[name]))
    assert sum(told_by(name, rounds).values()) == int(rounds)


def test_kills_leave_the_former_output_or_the_new_one_or_none():
    found = told_by("kills.py", KILLS)
    assert sum(found.values()) == int(KILLS)
    assert found.keys() - {"not killed"}


def test_kills_between_all_calls_of_publication_leave_an_output():
    words = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("between_calls.py"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["found"]
    assert {name.partition(": ")[2] for name in found} == {"former", "new", "none yet"}


def test_salvage():
    assert told_by("salvage.py", "10")["frames"] > 50


def test_damaged_files_are_an_error_or_read_as_others_read_them():
    script = str(Path(__file__).with_name("mutated.py"))
    words = [sys.executable, "-W", "ignore", script, "--json", "--rounds", str(MUTANTS)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["failures"] == []
    assert sum(sum(found.values()) for found in told["found"].values()) == MUTANTS
    assert set(told["found"]) == set(mutants.FORMATS)


def test_a_chunk_that_begins_where_none_does(tmp_path):
    path = mutants.make_whole("NetCDF-4", tmp_path)[3]
    data = path.read_bytes()
    place = struct.pack("<QQQ", 2, 4, 0)  # as the tree of chunks has it
    assert data.count(place) == 3  # of coordinates, velocities and forces
    path.write_bytes(data.replace(place, struct.pack("<QQQ", 2, 4, 3 << 40)))
    with pytest.raises(SourceError, match=rf"{path}.*has a chunk at \(2, 4, \d+\), where none"):
        mdio.open(path).read(0, 3)


def read_badly(_, path):
    """Crash, hang, want all memory, or fail, in this order."""
    number = int(path.parent.name.removeprefix("mutant"))
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 1:
        time.sleep(600)
    if number == 2:
        try:
            np.ones(mutated.MEMORY_NBYTES)
        except MemoryError:
            return "no memory"
    return "read"


def test_the_sandbox_survives_what_is_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(mutated, "SECONDS", 1)
    wholes = mutants.make_whole("DCD", tmp_path / "whole")
    box = mutated.Sandbox(read_badly, tmp_path)
    found = box.results("DCD", wholes, 0, range(5))
    assert found == {0: "crash: exit -9", 1: "hang", 2: "no memory", 3: "read", 4: "read"}


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", mutants.FORMATS)
def test_mutants_are_the_same_each_time_and_leave_the_whole_alone(tmp_path, kind):
    whole = mutants.make_whole(kind, tmp_path / "whole")[0]
    before = contents(whole.parent)
    a, b = (mutants.mutate(whole, tmp_path / name, kind, 3, 14).parent for name in ("a", "b"))
    assert contents(a) == contents(b) != before
    assert contents(whole.parent) == before


def test_what_differs_is_seen():
    one, two = ([mutated.digest(positions=np.full((2, 3), x))] for x in (1.0, 2.0))
    assert mutated.judge("DCD", one, two, one).startswith("differ: positions of frame 0")
    assert mutated.judge("NetCDF-4", one, two, one) == "unchanged"
    assert mutated.judge("NetCDF-4", two, one, one).startswith("differ: positions of frame 0")
    assert mutated.judge("DCD", two, two, one) == "equal"
    assert mutated.judge("DCD", one, one, one) == "unchanged"
    assert mutated.judge("segments", two, None, one).startswith("differ")
    assert mutated.judge("segments", [], None, one).startswith("differ")
