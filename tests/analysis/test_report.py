"""The report of an analysis: what it holds, and that it needs nothing else."""

import json
import re
import sys

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from oracles.report_pages import page_of
from parallel.on_dask import dask_client

import mdio
from mdio.analysis.kernels.geometry import RMSF
from mdio.analysis.report import check_report, save_report
from mdio.cli.main import main
from mdio.core.errors import MissingExtraError, OutputError
from mdio.core.timing import STRAGGLER_FACTOR, WorkerTiming, stragglers, timing_record


def seconds(text):
    number, unit = text.split()
    return float(number.replace(",", "")) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]


def test_report_of_processes(tmp_path):
    report, timings = tmp_path / "r.html", tmp_path / "t.json"
    words = ["analyze", "rmsd", DCD, "-s", PSF, "--select", "name CA", "-w", "2", "--quiet"]
    words += ["--blocks-per-worker", "2", "--timings", str(timings), "--report", str(report)]
    assert main(words) == 0
    page, times = page_of(report), json.loads(timings.read_text())
    assert page.titles == ["Summary", "Result", "Stragglers", "Time of each worker", "Blocks"]
    assert len(page.pictures) == 3
    assert page.pictures[0].startswith("rmsd (Å) over time")
    summary = dict(page.tables[0][1:])
    assert summary["workers"] == "2 (processes)"
    assert seconds(summary["slowest worker"]) == pytest.approx(times["t_total_s"], rel=0.01)
    assert summary["t_comp / t_IO"] == f"{times['ratio_comp_io']:.3g}"
    (spread,) = [table for table in page.tables if table[0][0] == "over 2 workers"]
    in_all = sorted(rank["t_N_s"] for rank in times["ranks"])
    want = [in_all[0], sum(in_all) / 2, in_all[1], sum(in_all)]
    assert [seconds(cell) for cell in spread[-1][1:]] == pytest.approx(want, rel=0.01)
    # Where the machine is busy there are stragglers, who have a table too.
    (ranks,) = [table for table in page.tables if {"worker", "frames"} <= set(table[0])]
    columns = dict(zip(ranks[0], zip(*ranks[1:], strict=True), strict=True))
    assert sum(map(int, columns["frames"])) == 98
    assert re.search(r"rmsd of \S+\.dcd: 98 frames in .*% of the time of 2 workers", page.texts[1])
    for text in ("0", "1", "2", "3", "worker 0", "I/O", "compute", "communication"):
        assert text in page.texts  # the pictures' text is text


def test_notes_are_in_the_report(tmp_path):
    """Who is sent the page sees what the program said."""
    result = mdio.analyze(DCD, top=PSF, kernel="rmsd", dt_ps=1.5)
    assert result.notes
    save_report(result, tmp_path / "r.html", "RMSD")
    page = page_of(tmp_path / "r.html")
    assert page.titles[:3] == ["Summary", "Notes", "Result"]
    assert {*result.notes} <= {*page.texts}


def test_displacements_are_reported_over_lags(tmp_path):
    result = mdio.analyze(DCD, kernel="msd", top=PSF, select="resid 1", stop=9)
    save_report(result, tmp_path / "r.html", "msd")
    page = page_of(tmp_path / "r.html")
    assert page.pictures[0].startswith("msd (Å²) over lag (ps)")
    assert "lag (ps)" in page.texts


def test_the_spread_of_communication_is_drawn_of_many_workers(tmp_path):
    result = mdio.analyze(DCD, kernel=mdio.RMSD(), workers=4)
    save_report(result, tmp_path / "r.html", "rmsd")
    assert "Distribution of t_comm over workers" in page_of(tmp_path / "r.html").pictures


@pytest.mark.filterwarnings("default")  # dask's own
def test_report_of_dask_names_tasks(tmp_path):
    with dask_client() as client, mdio.DaskExecutor(client) as executor:
        result = mdio.analyze(DCD, kernel=mdio.RMSD(), executor=executor, blocks_per_worker=3)
        workers = set(client.scheduler_info()["workers"])
        again = mdio.analyze(DCD, kernel=mdio.RMSD(), executor=executor)
    assert [task["block"] for task in again.tasks] == [0, 1]
    times = timing_record(result)
    assert [task["block"] for task in times["tasks"]] == list(range(6))
    assert {task["worker"] for task in times["tasks"]} <= workers
    assert sum(times["tasks_per_worker"].values()) == 6
    # Dask's clock is apart from ours by what it takes for the delay: processes tell tasks.
    pairs = zip(times["tasks"], times["timings"], strict=True)
    names = {(task["worker"], timing["worker"]) for task, timing in pairs}
    assert len(names) == len(dict(names)) == len({process for _, process in names})
    assert all(task["start_unix_s"] < task["stop_unix_s"] for task in times["tasks"])
    report = tmp_path / "r.html"
    save_report(result, report, "a <dask> & run")
    page = page_of(report)
    assert sum(text.startswith("a <dask> & run: 98 frames in ") for text in page.texts) == 2
    assert {row[0] for row in page.tables[-1][1:]} <= workers


def test_report_without_rows_a_frame(tmp_path):
    result = mdio.analyze(DCD, kernel=RMSF())
    save_report(result, tmp_path / "r.html", "rmsf")
    assert "Result" not in page_of(tmp_path / "r.html").titles


def many(n, slow=(), **more):
    """Return `n` workers of which some take longer."""
    workers = [
        WorkerTiming(f"rank {r} (a:{r})", r, 1, 9, t_open_s=0.1, t_io_s=1.0, t_comp_s=2.0)
        for r in range(n)
    ]
    for rank in slow:
        for name, seconds in more.items():
            setattr(workers[rank], name, getattr(workers[rank], name) + seconds)
    for worker in workers:
        worker.t_all_frame_s = worker.t_io_s + worker.t_comp_s + worker.t_end_loop_s
        worker.t_block_s = worker.t_all_frame_s + worker.t_open_s
    return workers


@pytest.mark.parametrize(
    ("cause", "name"), [("open", "t_open_s"), ("io", "t_io_s"), ("compute", "t_comp_s")]
)
def test_stragglers_and_what_made_them(cause, name):
    workers = many(8, [5], **{name: 2.0})
    workers[5].slowest_file = "5.dcd"
    (one,) = stragglers(workers)
    assert one["slowest_file"] == ("5.dcd" if cause == "io" else None)
    assert (one["rank"], one["cause"]) == (5, cause)
    assert one["beyond_median_s"] == pytest.approx(2.0)
    assert one["cause_beyond_s"] == pytest.approx(2.0)
    assert one["times_median"] == pytest.approx(5.1 / 3.1)


def test_waiting_makes_no_straggler():
    workers = many(8, [5], t_io_s=2.0)
    for worker in workers:
        worker.t_comm_s = worker.t_wait_s = 7.0 - worker.t_block_s
    assert [one["rank"] for one in stragglers(workers)] == [5]
    workers[2].t_comm_s += 4.0
    assert [(one["rank"], one["cause"]) for one in stragglers(workers)] == [
        (2, "communication"),
        (5, "io"),
    ]


def test_no_stragglers():
    assert stragglers(many(8)) == []
    assert stragglers(many(1, [0], t_io_s=5)) == []
    assert stragglers(many(8, [1], t_io_s=3.1 * (STRAGGLER_FACTOR - 1.02))) == []


def test_hundreds_of_ranks(tmp_path):
    result = mdio.analyze(DCD, kernel=mdio.RMSD())
    result.ranks = many(300, [7, 250], t_io_s=2.0)
    for worker in result.ranks:
        worker.t_comm_s = 0.01 * (1 + worker.rank % 7)
    save_report(result, tmp_path / "r.html", "many")
    page = page_of(tmp_path / "r.html")
    assert len([table for table in page.tables if len(table) == 301]) == 1
    assert [row[0] for row in page.tables[1][1:]] == ["rank 250 (a:250)", "rank 7 (a:7)"]


def test_what_stands_in_the_way_is_told_before_the_work(tmp_path, monkeypatch, capsys):
    words = ["analyze", "rmsd", str(tmp_path / "none.dcd"), "--report"]
    assert main([*words, str(tmp_path / "no" / "r.html")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "r.pdf")]) == 2
    assert "r.pdf: results are saved as .html or .htm" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*words, str(tmp_path / "r.html")]) == 1
    assert 'pip install "mdio-layouts[report]"' in capsys.readouterr().err
    with pytest.raises(MissingExtraError, match="matplotlib"):
        check_report(tmp_path / "r.html")


def test_the_result_is_drawn_as_plots_are(tmp_path):
    """Angles as a map, which is a picture within the page: as paths it took a megabyte."""
    result = mdio.analyze(DCD, top=PSF, kernel=mdio.Dihedrals(select="resid 1:20"))
    save_report(result, tmp_path / "r.html", "x")
    text = (tmp_path / "r.html").read_text()
    assert "phi (°)" in text and "psi (°)" in text and "data:image/png" in text
    assert len(text) < 300_000
    page = page_of(tmp_path / "r.html")
    assert page.outside == [] and page.pictures[0].startswith("psi (°) over phi (°)")


def test_many_lines_are_a_picture(tmp_path):
    """As paths, those of 98 frames and 1,000 columns took 2 MB."""
    for n_columns, is_picture in ((4, False), (1000, True)):
        result = mdio.analyze(DCD, kernel=lambda block, n=n_columns: block.positions[:, :n, 0])
        save_report(result, tmp_path / "r.html", "x")
        text = (tmp_path / "r.html").read_text()
        assert ("data:image/png" in text) == is_picture
        assert len(text) < 500_000


def test_values_with_many_columns(tmp_path):
    result = mdio.analyze(DCD, kernel=lambda block: np.array(block.positions[:, :5]))
    save_report(result, tmp_path / "r.html", "x")
    assert page_of(tmp_path / "r.html").pictures[0].startswith("values over time")
    with pytest.raises(OutputError):
        save_report(result, tmp_path, "x")
