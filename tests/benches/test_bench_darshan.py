"""Logs of Darshan: sums of the logs that come with pydarshan."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from suites.under_mpi import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import darshan_log
from measuring import run_bench

FOUND = importlib.util.find_spec("darshan")
FOLDERS = [Path(FOUND.origin).parent / "examples/example_logs"] if FOUND else []
# Sums over the records of each log, taken from the tables of pydarshan by hand.
KNOWN = {
    "ior_hdf5_example": {
        "POSIX": {"opens": 22, "reads": 36, "nbytes_read": 4202504, "nbytes_written": 4195800},
        "MPI-IO": {"opens": 17, "reads": 36, "nbytes_read": 4202504, "nbytes_written": 4195800},
        "H5D": {"opens": 6, "reads": 12, "nbytes_read": 3145728, "nbytes_written": 3145728},
    },
    "dxt": {
        "POSIX": {"opens": 264, "reads": 6126, "nbytes_read": 22517726},
        "STDIO": {"opens": 1, "reads": 39, "nbytes_read": 1876},
    },
}


def main(words):
    return run_bench(darshan_log.__doc__, darshan_log.setup, darshan_log.run, words)


def told(capsys, *words):
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("folder", FOLDERS, ids=["examples"] * len(FOLDERS))
def test_counters(folder, name, tmp_path, capsys):
    log = folder / f"{name}.darshan"
    (tmp_path / "t.json").write_text(json.dumps({"nbytes_source": 4202504}))
    found = told(capsys, log, "--timings", tmp_path / "t.json")
    assert found["nbytes_source"] == 4202504
    for module, row in KNOWN[name].items():
        assert row.items() <= found["modules"][module].items()
    none = told(capsys, log, "--files", "no such file")["modules"]
    assert all(not any(row.values()) for row in none.values())
    assert main([str(log)]) == 0
    assert "POSIX" in capsys.readouterr().out


@pytest.mark.parametrize("folder", FOLDERS, ids=["examples"] * len(FOLDERS))
def test_one_file_of_a_log(folder, capsys):
    log = folder / "ior_hdf5_example.darshan"
    found = told(capsys, log, "--files", "STDOUT")["modules"]
    assert found["POSIX"]["opens"] == 0 < found["STDIO"]["writes"]


@pytest.mark.parametrize("folder", FOLDERS, ids=["examples"] * len(FOLDERS))
def test_the_log_of_an_analysis(folder, tmp_path, capsys):
    """`rgyr.darshan`: darshan-runtime 3.5.0 below `mdio analyze rgyr md.xtc` of 98 frames."""
    log = Path(__file__).with_name("rgyr.darshan")
    # What mdio counted by the block: its first frame, and then the whole file.
    for counted, said in [(12484 + 1243164, "the other 20.4 KiB"), (1 << 30, "more than Darshan")]:
        (tmp_path / "t.json").write_text(json.dumps({"nbytes_source": counted}))
        words = [str(log), "--files", "/md.xtc", "--timings"]
        assert main([*words, str(tmp_path / "t.json")]) == 0
        assert said in capsys.readouterr().out


def test_what_is_no_log(tmp_path, capsys):
    (tmp_path / "a.darshan").write_text("nothing")
    assert main([str(tmp_path / "a.darshan")]) > 0
    said = capsys.readouterr().err
    assert "not a log of Darshan" in said or (not FOUND and "needs pydarshan" in said)
