"""``mdio model fit`` and ``mdio model predict``."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mdio.advisor.closed_form import predict, reference_workload
from mdio.advisor.profile import ACCESS_MODELS, load_profile
from mdio.cli.main import main
from mdio.parallel.executors import available_cores

CSV = Path(__file__).parents[2] / "bench/paper/published/comet_rmsd.csv"


def out_json(capsys, *words):
    assert main([str(word) for word in words]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return json.loads(told.out)


def test_fit_then_predict(tmp_path, capsys):
    path = tmp_path / "p.toml"
    found = out_json(capsys, "model", "fit", CSV, "-o", path, "--cores-per-node", 24, "--json")
    assert found["name"] == "comet"
    assert found["cores_per_node"] == 24
    assert found["n_rows"] == len(found["residuals"]) == 94
    assert found["median_relative_error"] < 0.1
    words = [
        "--layout",
        "hdf5",
        "--gather",
        "gather",
        "--workload",
        "1",
        "--ranks",
        "24,192,10000",
        "--json",
    ]
    guess = out_json(capsys, "model", "predict", path, *words)
    assert [row["n_ranks"] for row in guess["rows"]] == [24, 192, 10_000]
    for row in guess["rows"]:
        assert row["layout"] == "hdf5"
        assert row["gather"] == "gather"
        assert row["workload_x"] == 1
        assert 0 < row["low_s"] <= row["t_total_s"] <= row["high_s"]
    assert guess["rows"][0]["t_total_s"] == pytest.approx(30.3, rel=0.05)
    assert guess["rows"][1]["t_total_s"] == pytest.approx(4.0, rel=0.05)


def test_all_layouts_and_gathers_unless_said(capsys):
    rows = out_json(capsys, "model", "predict", "comet", "--ranks", "1, 48", "--json")["rows"]
    assert len(rows) == 16
    assert {row["layout"] for row in rows} == set(ACCESS_MODELS)
    some = [
        "--layout",
        "segments",
        "--layout",
        "hdf5",
        "--gather",
        "global-array",
        "--ranks",
        "2",
        "--workload",
        "40",
    ]
    rows = out_json(capsys, "model", "predict", "comet", *some, "--json")["rows"]
    assert [row["layout"] for row in rows] == ["segments", "hdf5"]


def test_one_row_and_options(tmp_path, capsys):
    table, path = tmp_path / "t.csv", tmp_path / "p.toml"
    table.write_text(
        "layout,gather,workload_x,n_ranks,t_total_max_s,t_comp_mean_s,t_io_mean_s\n"
        "xtc-shared,gather,1,1,500,100,395\n"
    )
    words = ["model", "fit", table, "-o", path, "--cores-per-node", 32, "--name", "new"]
    assert main([str(word) for word in words]) == 0
    assert "new, 32 cores a node, 1 row," in capsys.readouterr().out
    profile = load_profile(path)
    assert (profile.name, profile.cores_per_node) == ("new", 32)
    assert main(["model", "predict", str(path), "--ranks", "1,64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 17
    assert lines[1].split()[:4] == ["xtc-shared", "gather", "1", "1"]
    assert float(lines[1].split()[4]) == pytest.approx(500, rel=0.01)


def test_what_bench_scaling_wrote_can_be_fitted(adk, tmp_path, capsys):
    """On worker processes too, which know nothing of MPI's gathers."""
    words = ["-s", str(adk["psf"]), "--select", "name CA", "--executor", "processes"]
    words += ["-w", "1,2", "--repeats", "1", "-o", str(tmp_path), "--quiet"]
    assert main(["bench", "scaling", str(adk["dcd"]), *words]) == 0
    table, profile = tmp_path / "scaling.csv", tmp_path / "mine.toml"
    capsys.readouterr()
    # Runs this short may be told on stderr not to be told apart: it depends on the machine's load.
    assert main(["model", "fit", str(table), "-o", str(profile), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n_rows"], found["cores_per_node"]) == (2, available_cores())
    words = ["model", "predict", profile, "--layout", "dcd", "--gather", "blocking", "--ranks", "1"]
    (row,) = out_json(capsys, *words, "--json")["rows"]
    assert 0 < row["t_total_s"] < 10


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["fit", "none.csv", "-o", "p.toml"], 1, "none.csv: cannot be read"),
        (["fit", str(CSV), "-o", "no/p.toml"], 1, "the folder no does not exist"),
        (["fit", str(CSV), "-o", str(CSV)], 2, "saved as .toml"),
        (
            ["fit", str(CSV), "-o", "p.toml", "--prior", "x.toml"],
            1,
            "the machine profile cannot be",
        ),
        (["predict", "none.toml", "--ranks", "1"], 1, "the machine profile cannot be read"),
        (["predict", "comet", "--ranks", "1", "--layout", "tape"], 2, "'tape' is not in the"),
        (["predict", "comet", "--ranks", "1", "--gather", "x"], 2, "'x' is not in the scaling"),
        (["predict", "comet", "--ranks", "1", "--workload", "-1"], 2, "-1.0 is not a number above"),
        (["predict", "comet", "--ranks", "99999999"], 2, "99999999 ranks: expected a whole number"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, words, code, told):
    monkeypatch.chdir(tmp_path)
    assert main(["model", *words]) == code
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


HEADS = "layout,gather,workload_x,n_ranks,t_total_max_s,t_comp_mean_s,t_io_mean_s,executor"


def test_one_executor_of_a_table_is_fitted(tmp_path, capsys):
    table, profile = tmp_path / "scaling.csv", tmp_path / "p.toml"
    rows = "".join(
        f"segments,{gather},1,{n},{seconds / n},{2 / n},{seconds / n - 3 / n},{name}\n"
        for name, gather, seconds in (("processes", "none", 10), ("mpi", "blocking", 20))
        for n in (1, 2)
    )
    table.write_text(f"{HEADS},cores\n" + rows.replace("\n", ",8\n"))
    words = ["model", "fit", str(table), "-o", str(profile), "--json"]
    for more, seconds in (([], 20), (["--executor", "mpi"], 20), (["--executor", "processes"], 10)):
        assert main([*words, *more]) == 0
        told = capsys.readouterr()
        found = json.loads(told.out)
        assert [row["measured_s"] for row in found["residuals"]] == [seconds, seconds / 2]
        assert found["cores_per_node"] == 8
        assert told.err == ("" if more else told.err) and told.err.count("\n") == (not more)
        assert more or "to the rows of mpi, one of the executors mpi and processes" in told.err
    assert main([*words, "--executor", "dask"]) == 1
    assert "no row of the executor dask, but of mpi and processes" in capsys.readouterr().err
    table.write_text(table.read_text().replace("mpi", "serial"))
    assert main(words) == 1
    assert "of the executors processes and serial; give one of them" in capsys.readouterr().err


def test_assumed_cores_are_told(tmp_path, capsys):
    table, profile = tmp_path / "scaling.csv", tmp_path / "p.toml"
    table.write_text(f"{HEADS}\nsegments,none,1,1,10,2,8,serial\n")
    words = ["model", "fit", str(table), "-o", str(profile)]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "24 cores a node are assumed" in told.err and "--cores-per-node" in told.err
    assert main([*words, "--cores-per-node", "4"]) == 0
    assert capsys.readouterr().err == ""


def test_a_node_of_one_core_slows_nothing_down():
    alone = replace(load_profile("comet"), cores_per_node=1)
    work = reference_workload(alone, "segments", 1.0)
    one = predict(alone, "segments", "gather", 1, work)
    assert one == predict(load_profile("comet"), "segments", "gather", 1, work)


@pytest.mark.parametrize("ranks", ["0", "1,,2", "1.5", "-3", ""])
def test_ranks_that_are_no_numbers(ranks, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["model", "predict", "comet", f"--ranks={ranks}"])
    assert caught.value.code == 2
    assert "whole number" in capsys.readouterr().err


def test_layouts_that_were_not_measured_are_named(tmp_path, capsys):
    lines = CSV.read_text().splitlines()
    kept = [lines[0], *(line for line in lines[1:] if "hdf5" in line)]
    (tmp_path / "t.csv").write_text("\n".join(kept) + "\n")
    assert main(["model", "fit", str(tmp_path / "t.csv"), "-o", str(tmp_path / "p.toml")]) == 0
    words = ["model", "predict", str(tmp_path / "p.toml"), "--ranks", "24"]
    assert main([*words, "--layout", "hdf5"]) == 0
    capsys.readouterr()
    assert main([*words, "--layout", "hdf5", "--layout", "zarr"]) == 0
    told = capsys.readouterr().err
    assert "zarr was not measured" in told and "hdf5 was not" not in told


def test_two_layouts_of_mdio_may_be_one_of_the_model(tmp_path, capsys):
    header, row = CSV.read_text().splitlines()[:2]
    names, cells = header.split(","), row.split(",")
    rows = []
    for layout, seconds in (("zarr", cells[names.index("t_total_max_s")]), ("segments", "1e6")):
        cells[names.index("layout")] = layout
        cells[names.index("t_total_max_s")] = seconds
        rows.append(",".join(cells))
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    assert main(["model", "fit", str(tmp_path / "t.csv"), "-o", str(tmp_path / "p.toml")]) == 0
    notes = capsys.readouterr().err
    assert "segments and zarr are one layout of the model, segments" in notes
    assert "of 2 rows took more or less time" in notes
