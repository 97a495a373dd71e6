"""The bench of reporters runs, and tells of each."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_reporters(tmp_path):
    words = ["--edge-nm", "2", "--interval", "2", "--steps", "4", "--repeats", "1"]
    words += ["--frames", "8", "-o", "out.jsonl"]
    subprocess.run(
        [sys.executable, BENCH / "reporters.py", *words], cwd=tmp_path, check=True, timeout=120
    )
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["reporter"] for row in rows] == ["dropped", "mdio", "dcd"]
    assert all(row["frame_cpu_s"] > 0 and row["cpu_s"]["min"] > 0 for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
