"""``mdio mapreduce``: programs by name, frames, replicas, tables on disk, exit codes."""

import csv
import json
import sys

import numpy as np
import pyarrow.parquet
import pytest

import mdio
from mdio.cli.main import main
from mdio.core.errors import MissingExtraError, PlanError
from mdio.mapreduce.results import MapReduceResult

PROGRAM = """
import numpy as np

class Largest:
    select = "name CA"

    def __init__(self, above=-1e9, odd=False):
        self.above, self.odd = above, odd

    def map(self, block):
        x = block.positions[:, :, 0]
        rows, atoms = np.nonzero(x > self.above)
        return atoms, rows, {"x": x[rows, atoms]}

    def reduce(self, key, frame, time, values):
        if self.odd and key % 2:
            raise ValueError("odd")
        return {"largest": values["x"].max(), "first": frame[0], "ends": time[[0, -1]]}

class NoMap:
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, adk):
    (tmp_path / "cliprogram.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("cliprogram", None)


def mapreduce(*words):
    return main(["mapreduce", *map(str, words)])


def test_tables(folder, adk, capsys):
    words = ("cliprogram:Largest", adk["dcd"], "-s", adk["psf"], "--step", 3, "--set", "above=-5")
    for name, workers in (("t.npz", 1), ("t.csv", 2), ("t.parquet", 2)):
        assert mapreduce(*words, "-o", name, "-w", workers) == 0
        out = capsys.readouterr().out
        key = "keys" if name == "t.npz" else "key"  # the name in the file
        assert "33 frames" in out and f"{name}: {key}, largest, first, ends" in out
    program = sys.modules["cliprogram"].Largest(-5)
    result = mdio.map_reduce(adk["dcd"], top=adk["psf"], map=program.map, frames=slice(0, None, 3))
    with np.load("t.npz") as found:
        np.testing.assert_array_equal(found["keys"], result.keys)
        for name, column in result.columns.items():
            np.testing.assert_array_equal(found[name], column)
    flat = result.flat()
    assert list(flat) == ["key", "largest", "first", "ends_0", "ends_1"]
    with open("t.csv") as file:
        names, *rows = csv.reader(file)
    assert names == list(flat)
    for column, values in zip(zip(*rows, strict=True), flat.values(), strict=True):
        assert [float(word) for word in column] == values.tolist()
    table = pyarrow.parquet.read_table("t.parquet")
    assert table.column_names == list(flat)
    assert result.to_dataframe().index.name == "key"
    frame = result.to_dataframe().reset_index()
    assert frame.columns.tolist() == list(flat)
    for name, values in flat.items():
        assert table[name].to_pylist() == values.tolist() == frame[name].tolist()


def test_replicas_and_times(folder, adk, capsys):
    words = ("cliprogram:Largest", f"a={adk['xtc']}", adk["dcd"], "-s", adk["psf"], "--replicas")
    assert mapreduce(*words, "-b", 7, "-e", 21, "-o", "r.csv", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["columns"] == {"largest": [], "first": [], "ends": [2]}
    with open("r.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:2] == ["label", "key"]
    assert [row["label"] for row in rows[:4]] == ["a", "adk", "a", "adk"]
    assert told["n_keys"] == len(rows) == 2 * 214
    assert (rows[0]["ends_0"], rows[0]["ends_1"], rows[0]["first"]) == ("7.0", "21.0", "1")
    assert mapreduce(*words[:3], adk["dcd"], *words[3:]) == 2
    assert "two trajectories are called 'adk'" in capsys.readouterr().err


def test_keep_going(folder, adk, capsys):
    words = ("cliprogram:Largest", adk["dcd"], "-s", adk["psf"], "--set", "odd=True")
    assert mapreduce(*words, "-o", "k.npz") == 1
    assert "reduce of the key 1 failed: ValueError: odd" in capsys.readouterr().err
    assert not (folder / "k.npz").exists()
    assert mapreduce(*words, "-o", "k.npz", "--keep-going") == 1
    err = capsys.readouterr().err
    assert "the key 1 is left out: ValueError: odd" in err and "97 more keys" in err
    with np.load("k.npz") as found:
        assert found["keys"].tolist() == list(range(0, 214, 2))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cliprogram:NoMap",), "or an object with the methods map and reduce"),
        (("cliprogram:Nothing",), "no function 'Nothing' in"),
        (("cliprogram:Largest", "--set", "above"), "write it as NAME=VALUE"),
        (("cliprogram:Largest", "--set", "below=3"), "arguments are given with --set"),
        (("cliprogram:Largest", "--start", "3", "-b", "4"), "choose frames by number"),
        (("cliprogram:Largest", "-o", "table.xlsx"), "npz"),
        (
            ("cliprogram:Largest", "--start", "98"),
            "no frames with --start 98; it has frames 0 to 97",
        ),
    ],
)
def test_wrong_command_lines(folder, adk, words, message, capsys):
    program, *rest = words
    assert mapreduce(program, adk["dcd"], "-s", adk["psf"], *rest) == 2
    assert message in capsys.readouterr().err


def test_keys_of_bytes_and_what_a_class_refuses(folder, adk, capsys):
    (folder / "bytesprogram.py").write_text(
        "import numpy as np\n"
        "class Named:\n"
        "    def __init__(self, n=1):\n"
        "        if n < 0: raise ValueError('n is negative')\n"
        "    def map(self, block):\n"
        "        return np.array([b'ab']), np.zeros(1, int), {'n': np.ones(1)}\n"
        "    def reduce(self, key, frame, time, values):\n"
        "        raise ValueError('odd')\n"
    )
    assert mapreduce("bytesprogram:Named", adk["dcd"], "--keep-going", "--json") == 1
    assert json.loads(capsys.readouterr().out)["failed"][0]["key"] == "ab"
    assert mapreduce("bytesprogram:Named", adk["dcd"], "--set", "n=-1") == 2
    assert "n is negative; arguments are given with --set" in capsys.readouterr().err


def test_labels_that_are_alike_as_text(adk):
    with pytest.raises(PlanError, match="are the same text"):
        mdio.map_reduce({1: adk["dcd"], "1": adk["dcd"]}, map=len, reduce=max)


def test_without_pandas_and_pyarrow(monkeypatch, tmp_path):
    result = MapReduceResult(
        keys=np.arange(2),
        columns={},
        label=None,
        failures=[],
        **dict.fromkeys(("frame", "time", "n_pairs"), np.empty(0)),
        timings=[],
        seconds=0,
        reduce_s=0,
        executor="",
        workers=1,
        nbytes_shuffled=0,
        nbytes_on_disk=0,
    )
    result.columns = {"x": np.zeros((2, 2)), "x_1": np.zeros(2)}
    with pytest.raises(PlanError, match="two columns would be called 'x_1'"):
        result.save(tmp_path / "t.csv")
    result.columns = {}
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"mdio-layouts\[table\]"):
        result.to_dataframe()
    with pytest.raises(MissingExtraError, match="pyarrow"):
        result.save(tmp_path / "t.parquet")
    assert not list(tmp_path.iterdir())


def test_parquet_is_refused_before_the_work_where_it_cannot_be_written(folder, adk, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("mdio.cli.mapreduce.map_reduce", lambda **_: pytest.fail("it began"))
    with pytest.raises(MissingExtraError, match="pyarrow"):
        mapreduce("cliprogram:Largest", adk["xtc"], "-s", adk["psf"], "-o", "t.parquet", "--debug")


def test_a_cache_serves_the_second_pass(folder, adk, capsys):
    words = ["cliprogram:Largest", adk["xtc"], "-s", adk["psf"], "--cache", "kept", "--json"]
    assert mapreduce(*words, "-o", "first.csv") == 0
    capsys.readouterr()
    assert main(["cache", "status", "kept", "--json"]) == 0
    (kept,) = json.loads(capsys.readouterr().out)["trajectories"]
    assert kept["units_cached"] == kept["units"] > 0
    assert mapreduce(*words, "-o", "second.csv", "-w", "2") == 0
    assert (folder / "first.csv").read_bytes() == (folder / "second.csv").read_bytes()
