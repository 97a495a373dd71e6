"""Stores beside all that works in several processes: ranks, Dask, benches, the advisor."""

import json
import pickle

import pytest
from suites.quick_advice import quickly
from suites.under_mpi import needs_mpi, run_under_mpi

import mdio
from mdio.advisor.probes import bandwidths, probe
from mdio.analysis.kernels.kernel import make_kernel
from mdio.analysis.system import System
from mdio.cli.main import main
from mdio.core.files.page_cache import files_in
from mdio.core.files.store import to_path
from mdio.parallel.executors import Executor

pytestmark = pytest.mark.usefixtures("spool", "nothing_fails")


def same(out, positions):
    with mdio.open(out) as layout:
        return (layout.read(0, 98).positions == positions).all() and mdio.verify(out).ok


@needs_mpi
@pytest.mark.parametrize("name", ["ranks.zarr", "ranks.h5md", "ranks.segments"])
def test_ranks_write_into_a_store(bucket, adk, positions, name):
    out = f"{bucket}/{name}"
    words = ("-m", "mdio.cli.main", "convert", f"{bucket}/adk.dcd", out, "--mpi", "--quiet")
    code, text, err = run_under_mpi(2, *words)
    assert code == 0, text + err
    assert same(out, positions)
    if not name.endswith(".segments"):
        added = ("append", adk["dcd"], out, "--overlap", "keep-all", "--mpi", "--quiet")
        code, text, err = run_under_mpi(2, *words[:2], *added)
        assert code == 0, text + err
        assert mdio.open(out).info.n_frames == 196


@needs_mpi
def test_ranks_go_on_with_what_workers_have_left(bucket, adk, positions, spool):
    out, done = f"{bucket}/left.zarr", []

    def stops(n_frames, _):
        done.append(n_frames)
        if len(done) == 2:  # the first is noted, whichever it is
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), mdio.Processes(3) as executor:
        mdio.convert(
            adk["dcd"],
            out,
            storage=mdio.Storage(chunk_frames=10),
            executor=executor,
            progress=stops,
        )
    words = ("convert", adk["dcd"], out, "--chunk-frames", "10", "--mpi", "--resume")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(spool))
        code, text, err = run_under_mpi(2, "-m", "mdio.cli.main", *words)
    assert code == 0, text + err
    assert "of 98 frames taken from an earlier run" in text
    assert same(out, positions)


class Late(Executor):
    """Has all pieces made by a worker before the first is taken, as those of Dask may."""

    n_workers = 1

    def imap(self, func, items, *, describe=str):
        yield from enumerate([*map(pickle.loads(pickle.dumps(func)), items)])


def test_what_workers_hand_over_is_not_overwritten(bucket, adk):
    out = f"{bucket}/lent.h5md"
    mdio.convert(adk["xtc"], out, executor=Late(), storage=mdio.Storage(chunk_frames=10))
    assert mdio.verify(out, against=adk["xtc"]).ok


def test_bench_of_scaling(bucket, adk, tmp_path, capsys):
    words = ["-s", str(adk["psf"]), "--repeats", "1", "-o", str(tmp_path / "out"), "--json"]
    assert main(["bench", "scaling", f"{bucket}/adk.zarr", *words, "-w", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["n_frames"] == 98


def test_the_advisor_measures_what_lies_in_a_store(bucket, adk):
    where = to_path(f"{bucket}/adk.zarr")
    with mdio.open(where) as layout:
        prepared = make_kernel("rmsd", "name CA").prepare(System(layout, str(adk["psf"])))
        assert probe(layout, prepared, 20.0).finished
    assert {"zarr.json", "c.0.0.0"} <= {path.name for path in files_in(where)}
    assert bandwidths([where], [1])[0].nbytes_per_s > 0


def test_the_advisor_runs_over_a_store_as_cold_as_ever(bucket, adk, tmp_path):
    found = quickly(adk, tmp_path, source=f"{bucket}/adk.xtc")
    assert f"{bucket}/" not in (found.host.cold_problem or "").replace(":/", "://")
    assert "cold" in {run.cache for run in found.trials[0].runs}
