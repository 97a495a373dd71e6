"""Every command on every layout: by one process, two, ranks and Dask's workers."""

import pytest
from suites.every_command import LAYOUTS, commands, make_sources, run
from suites.under_mpi import needs_mpi, run_checks


@pytest.fixture
def folder(tmp_path):
    make_sources(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_by_workers(folder, name, workers):
    commands(folder, name, ["-w", workers])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_splitting(folder, workers):
    for suffix in ("xtc", "dcd", "trr", "ncdf"):
        out = folder / f"of-{suffix}.segments"
        run("convert", folder / "all.xtc", folder / f"one.{suffix}", "-q")
        run("split", folder / f"one.{suffix}", out, "--segments", "3", "-w", workers, "-q")
        run("verify", out, "--against", folder / f"one.{suffix}", "-w", workers, "-q")


@pytest.fixture(scope="module")
def scheduler():
    from parallel.on_dask import dask_client

    with dask_client() as client:
        yield client.scheduler.address


@pytest.mark.parametrize("name", LAYOUTS)
def test_by_dasks_workers(folder, name, scheduler):
    commands(folder, name, ["--scheduler", scheduler])


@needs_mpi
def test_by_ranks(folder):
    run_checks(2, "check_every_command.py", folder)
