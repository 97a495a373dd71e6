"""A signal that reaches a rank other than 0 alone."""

import signal
import subprocess
import sys

import pytest

ENDED = """
import os, sys, time
from mdio.core.signals import ending_signals_left_to_rank_0
with ending_signals_left_to_rank_0(0.2):
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_that_rank_0_does_not_end_says_by_which_signal_it_ends(number, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "3")
    words = [sys.executable, "-c", ENDED, str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number
    assert done.stderr.count("\n") == 1
    assert "rank 3 on" in done.stderr and f"ended by {number.name}" in done.stderr
