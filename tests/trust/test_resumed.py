"""A few of the random ends; resumed.py --rounds does more."""

import json
import subprocess
import sys
from pathlib import Path

ROUNDS = "11"


def test_conversions_that_were_ended_are_gone_on_with():
    words = [sys.executable, str(Path(__file__).with_name("resumed.py")), "--rounds", ROUNDS]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["failures"] == [] and told["rounds"] == int(ROUNDS)
    assert told["seen"]["gone on with"] > 0
