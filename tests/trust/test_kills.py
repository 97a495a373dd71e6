"""A few of the random kills; MDIO_KILL_ROUNDS asks for more."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROUNDS = os.environ.get("MDIO_KILL_ROUNDS", "22")


def test_kills_leave_the_former_output_or_the_new_one_or_none():
    words = [sys.executable, str(Path(__file__).with_name("kills.py")), "--rounds", ROUNDS]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["failures"] == [] and sum(told["found"].values()) == int(ROUNDS)
    assert told["found"].keys() - {"not killed"}
