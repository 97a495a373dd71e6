"""A few rounds of each harness of docs/trust.md; more with the commands that stand there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = {"power_cuts.py": 11, "faults.py": 22, "read_faults.py": 132, "flips.py": 24}
KILLS = os.environ.get("MDIO_KILL_ROUNDS", "22")


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


def test_salvage():
    assert told_by("salvage.py", "10")["frames"] > 50
