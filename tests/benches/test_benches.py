"""Tiny runs of the benches of scaling, gathers and schedulers, and the arithmetic of speed-ups."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from oracles.report_pages import page_of
from suites.under_mpi import MPI, ROOT, needs_mpi

from mdio.analysis.kernels import geometry
from mdio.analysis.scaling import (
    MDIO,
    Case,
    list_cases,
    mpiexec_command,
    run_all,
    run_for_json,
    summarise,
    write_csv,
)
from mdio.cli.main import main
from mdio.core.errors import BlockError, MissingExtraError

sys.path.insert(0, str(ROOT / "bench"))
import scheduler
from gather import summarise as summarise_gather
from gather import verdict
from measuring import run_bench
from scheduler import SCHEDULERS, measure


def mdio_with_mpi(*words, program=MDIO):
    """Run the command line, or a script, in the environment that has MPI."""
    command = [MPI[1], *map(str, (*program, *words))]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_scaling(tmp_path, capsys, monkeypatch):
    n_computed, rmsd = 0, geometry.kernels.rmsd

    def counting_rmsd(positions, *arguments):
        nonlocal n_computed
        n_computed += len(positions)
        return rmsd(positions, *arguments)

    monkeypatch.setattr(geometry.kernels, "rmsd", counting_rmsd)
    words = ["bench", "scaling", DCD, "-s", PSF, "--select", "name CA", "-o", str(tmp_path)]
    words += ["--executor", "serial,processes", "-w", "1,2", "--repeat", "1,40", "--repeats", "2"]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = printed["rows"]
    assert len(rows) == 6
    for row in rows:
        assert row["repeats"] == 2
        assert row["n_frames"] == 98
        assert row["t_total_max_s"] > row["t_io_mean_s"] > 0
        assert row["efficiency"] == pytest.approx(row["speedup"] / row["n_ranks"])
        if row["n_ranks"] == 1:
            assert (row["speedup"], row["speedup_std"]) == (1.0, 0.0)
    assert n_computed == 2 * (1 + 40) * 98  # by the serial runs, in this process
    runs = [json.loads(line) for line in (tmp_path / "scaling.jsonl").read_text().splitlines()]
    assert len(runs) == 12
    assert runs[0]["run"]["schema"] == "mdio-timings-1"
    assert runs[0]["provenance"]["versions"]["numpy"] == np.__version__
    with (tmp_path / "scaling.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["t_total_max_s"]) for row in table] == [row["t_total_max_s"] for row in rows]
    assert main(words) == 1
    assert "scaling.csv and scaling.html of an earlier run" in capsys.readouterr().err
    page = page_of(tmp_path / "scaling.html")
    assert page.titles == ["All series", *dict.fromkeys(row["series"] for row in rows)]
    assert len(page.pictures) == 2 + 3 * 4


def test_a_speedup_without_one_worker_is_said_to_be_assumed(tmp_path, capsys):
    words = ["bench", "scaling", DCD, "-s", PSF, "--repeats", "1", "--executor", "processes"]
    for workers, is_assumed in (("2", True), ("1", False)):
        assert main([*words, "-w", workers, "-o", str(tmp_path / workers)]) == 0
        printed = capsys.readouterr().out
        assert ("taken to be 2 and 1 with 2 workers" in printed) == is_assumed


def runs_of(n_ranks, totals, series="a"):
    rank = {"t_comp_s": 1.0, "t_IO_s": 2.0, "t_opening_trajectory_s": 0.1, "t_comm_s": 0.2}
    return [
        {
            "series": series,
            "kernel": "rmsd",
            "trajectory": "a.xtc",
            "layout": "xtc",
            "executor": "mpi",
            "gather": "blocking",
            "workload_x": 1,
            "n_ranks": n_ranks,
            "run": {
                "t_total_s": total,
                "seconds": total,
                "n_frames": 9,
                "nbytes_source": 360,
                "stragglers": [],
                "ranks": [rank, {**rank, "t_comm_s": 0.6}],
            },
        }
        for total in totals
    ]


def test_speedup_and_its_deviation():
    one, four = summarise(runs_of(1, [9.0, 11.0]) + runs_of(4, [3.8, 4.2]))
    assert one["speedup"] == 1
    assert four["speedup"] == pytest.approx(10 / 4)
    assert four["efficiency"] == pytest.approx(10 / 16)
    relative = np.hypot(np.std([9, 11], ddof=1) / 10, np.std([3.8, 4.2], ddof=1) / 4)
    assert four["speedup_std"] == pytest.approx(2.5 * relative)
    assert four["efficiency_std"] == pytest.approx(2.5 * relative / 4)
    assert (four["t_comm_mean_s"], four["t_comm_max_s"]) == (pytest.approx(0.4), 0.6)
    assert four["ratio_comp_io"] == 0.5


def test_the_table_has_the_columns_of_the_model(tmp_path):
    from mdio.advisor.fit import REQUIRED

    write_csv(tmp_path / "scaling.csv", summarise(runs_of(1, [9.0]) + runs_of(4, [3.0])))
    with (tmp_path / "scaling.csv").open(newline="") as file:
        one, four = csv.DictReader(file)
    assert set(REQUIRED) <= set(one)
    assert (four["n_ranks"], four["t_total_max_s"], four["t_io_mean_s"]) == ("4", "3.0", "2.0")
    assert (four["n_frames"], four["nbytes"]) == ("9", "360")


def test_without_one_worker_the_smallest_is_the_base():
    two, four = summarise(runs_of(2, [6.0]) + runs_of(4, [3.0]))
    assert (two["speedup"], four["speedup"], four["base_ranks"]) == (2, 4, 2)
    assert four["efficiency"] == 1


def test_cases():
    from MDAnalysisTests.datafiles import PRM, TRJ

    (case,) = list_cases([TRJ], ["serial"], [], [1], [1], PRM)  # PRM counts the atoms
    assert case.layout == "generic"
    found = list_cases([DCD], ["serial", "mpi"], ["blocking", "one-sided"], [1, 40], [4, 1])
    assert [case.n_ranks for case in found if case.executor == "serial"] == [1, 1]
    assert len([case for case in found if case.executor == "mpi"]) == 2 * 2 * 2
    assert len({(case.series_of("md"), case.n_ranks) for case in found}) == len(found)
    assert found[0] == Case(DCD, "dcd", "serial", "none", 1, 1)


def test_trajectories_of_one_name_are_two_series(tmp_path):
    class Quick:
        kernel = "rmsd"

        def run(self, _):
            return {"t_total_s": 1.0}

    paths = [str(tmp_path / folder / "md.xtc") for folder in "ab"]
    cases = [Case(path, "xtc", "serial", "none", 1, 1) for path in [*paths, "other.xtc"]]
    records = list(run_all(Quick(), cases, 1, lambda _: None))
    assert [record["series"].split(", ")[1] for record in records] == [*paths, "other.xtc"]


def test_only_rmsd_is_repeated(tmp_path, capsys):
    words = ["bench", "scaling", DCD, "--kernel", "distances", "--repeat", "1,40"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 2
    assert "--repeat is for --kernel rmsd, not for distances" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@needs_mpi
def test_scaling_under_mpi(tmp_path):
    done = mdio_with_mpi(
        "bench", "scaling", DCD, "-s", PSF, "--select", "name CA", "--executor", "mpi",
        "--gather", "nonblocking", "-w", "2", "--repeats", "1", "-o", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = [json.loads(line) for line in (tmp_path / "scaling.jsonl").read_text().splitlines()]
    assert [rank["rank"] for rank in run["run"]["ranks"]] == [0, 1]
    assert run["run"]["gather"] == run["gather"] == "nonblocking"
    assert len(page_of(tmp_path / "scaling.html").pictures) == 5


@needs_mpi
def test_scaling_tells_why_ranks_failed(tmp_path):
    done = mdio_with_mpi(
        "bench", "scaling", DCD, "--select", "name CA", "--executor", "mpi", "-w", "2",
        "--repeats", "1", "-o", tmp_path, "--quiet",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "topology" in done.stderr


@needs_mpi
def test_gather(tmp_path):
    words = ["-w", "1,2", "--nbytes", "1K,64K", "--repeats", "3", "-o", tmp_path, "--json"]
    done = mdio_with_mpi(*words, program=[ROOT / "bench/gather.py"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(row["n_ranks"], row["nbytes_per_rank"]) for row in found["rows"]] == [
        (1, 1024), (1, 65536), (2, 1024), (2, 65536),
    ]  # fmt: skip
    assert len((tmp_path / "gather.jsonl").read_text().splitlines()) == 4 * 4 * 3
    page = page_of(tmp_path / "gather.html")
    assert found["verdict"] in page.texts
    assert len(page.pictures) == 2


def test_verdict():
    def records(ratio):
        times = {"blocking": 1.0, "nonblocking": ratio, "one-sided": 1.0, "kept array": 0.5}
        return [
            {"n_ranks": n, "nbytes_per_rank": 8, "gather": how, "seconds": s}
            for n in (1, 2)
            for how, s in times.items()
        ]

    assert "did as well or better in 1 of 1" in verdict(summarise_gather(records(1.05)))
    said = verdict(summarise_gather(records(2.0)))
    assert "did as well or better in 0 of 1 cases: they took 2.00 to 2.00" in said
    assert "they took 4.00 to 4.00" in said
    assert "no answer" in verdict(summarise_gather(records(1.0)[:4]))


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "dask-distributed"])
@pytest.mark.filterwarnings("default")
def test_scheduler(name):
    if name.startswith("dask"):
        pytest.importorskip("dask")
    found = measure(name, 200, 2)
    assert found["n_tasks"] == 200
    assert 0 < found["seconds"] < 60
    assert found["tasks_per_s"] > 10
    times, rates = zip(*found["curve"], strict=True)
    assert list(times) == sorted(times)
    steps = np.diff([0.0, *times])
    assert np.dot(steps, rates) <= 199 + 1e-6
    assert min(rates) > 0


@pytest.mark.filterwarnings("default")  # dask's own
def test_scheduler_command(tmp_path, capsys):
    pytest.importorskip("distributed")
    words = ["--tasks", "50", "-w", "1", "--repeats", "1"]
    words += ["--scheduler", "threads,dask-distributed", "-o", str(tmp_path)]
    assert run_bench(scheduler.__doc__, scheduler.setup, scheduler.run, words) == 0
    assert "dask-distributed" in capsys.readouterr().out
    assert len((tmp_path / "scheduler.jsonl").read_text().splitlines()) == 2
    page = page_of(tmp_path / "scheduler.html")
    assert [row[0] for row in page.tables[0]] == ["scheduler", "threads", "dask-distributed"]


def test_what_stands_in_the_way(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "scaling", DCD, "--executor", "slurm"])
    assert "'slurm' is none of serial, processes, dask, mpi" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["bench", "scaling", DCD, "-o", str(tmp_path / "file")]) == 1
    assert "cannot be made" in capsys.readouterr().err
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for launcher, name in ((None, "mpiexec"), ("srun --mpi=pmi2", "srun")):
        with pytest.raises(MissingExtraError, match=f"no {name}; make mpi"):
            mpiexec_command(launcher, 2, "info")
    assert mpiexec_command("/bin/sh -x", 3, "info")[:4] == ["/bin/sh", "-x", "-n", "3"]


def test_help_of_each_bench(capsys):
    for words in (["bench"], ["bench", "scaling"]):
        with pytest.raises(SystemExit) as end:
            main([*words, "--help"])
        assert end.value.code == 0
        assert "usage: mdio bench" in capsys.readouterr().out


def test_benches_that_are_scripts_now(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "layouts", "a.xtc", "--folder", "out"])
    assert "python bench/layouts.py" in capsys.readouterr().err


def test_a_program_that_failed_is_not_believed():
    words = [sys.executable, "-c", "print('{\"a\": 1}'); raise SystemExit(3)"]
    with pytest.raises(BlockError, match=r"failed \(3\)"):
        run_for_json(words)
