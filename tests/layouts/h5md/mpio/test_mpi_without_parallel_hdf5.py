"""``mdio convert --mpi`` on real ranks whose h5py has no parallel HDF5, as the wheels of PyPI."""

from pathlib import Path

import h5py
import pytest
from numpy.testing import assert_array_equal
from suites.under_mpi import needs_mpi, run_under_mpi

import mdio

pytestmark = [
    needs_mpi,
    pytest.mark.skipif(h5py.get_config().mpi, reason="this h5py is parallel"),
]
CLI = ("-m", "mdio.cli.main")


@pytest.fixture
def serial_h5py(tmp_path_factory, monkeypatch):
    """Let ranks import this environment's h5py, whichever their own one is."""
    folder = tmp_path_factory.mktemp("serial")
    package = Path(h5py.__file__).parent
    for path in (package, package.with_name("h5py.libs")):
        if path.exists():
            (folder / path.name).symlink_to(path)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    code, out, err = run_under_mpi(1, "-c", "import h5py; print(h5py.get_config().mpi)")
    if (code, out.strip()) != (0, "False"):
        pytest.skip(f"ranks cannot import this h5py: {err[-200:]}")


@pytest.mark.usefixtures("serial_h5py")
@pytest.mark.parametrize("how", [(), ("--contiguous",)])
def test_one_file_all_the_same(adk, tmp_path, how):
    out = tmp_path / "a.h5md"
    words = ("convert", adk["xtc"], out, "--mpi", "-s", adk["psf"], "--group", "ca=name CA", *how)
    code, _, err = run_under_mpi(3, *CLI, *words)
    assert code == 0, err
    assert {path.name for path in tmp_path.iterdir()} == {"a.h5md", "a.ca.top.pdb"}
    assert mdio.verify(out, adk["xtc"]).ok
    with mdio.open(out) as layout, h5py.File(out) as file:
        block = layout.read(0, 98)
        value = file["particles/trajectory/position/value"]
        assert not value.is_virtual
        assert_array_equal(value, block.positions)


@pytest.mark.usefixtures("serial_h5py")
@pytest.mark.parametrize("how", [("--compression", "gzip:1"), ("--precision", "0.01")])
def test_what_is_compressed_is_one_file(adk, tmp_path, how):
    out = tmp_path / "a.h5md"
    words = ("convert", adk["xtc"], out, "--mpi", "--chunk-frames", "7", *how)
    code, _, err = run_under_mpi(3, *CLI, *words)
    assert (code, err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5md"]
    assert mdio.verify(out, adk["xtc"]).ok
    with mdio.open(out) as layout:
        block = layout.read(0, 98)
    mdio.convert(
        adk["xtc"], tmp_path / "one.h5md", storage=mdio.Storage(chunk_frames=7), **option_of(how)
    )
    with mdio.open(tmp_path / "one.h5md") as one:
        assert_array_equal(one.read(0, 98).positions, block.positions)
        assert_array_equal(one.read(0, 98).time, block.time)


def option_of(how):
    name, value = how
    return {name[2:]: float(value) if name == "--precision" else value}


@pytest.mark.usefixtures("serial_h5py")
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_one_block_or_one_rank_is_one_file(adk, tmp_path, n_ranks):
    out = tmp_path / "a.h5md"
    frames = "98" if n_ranks == 3 else "7"
    words = ("convert", adk["xtc"], out, "--mpi", "--chunk-frames", frames)
    code, _, err = run_under_mpi(n_ranks, *CLI, *words, "--compression", "gzip:1")
    assert (code, err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5md"]
    assert mdio.verify(out, adk["xtc"]).ok


@pytest.mark.usefixtures("serial_h5py")
@pytest.mark.parametrize("option", ["--mpio", "--collective"])
def test_parallel_hdf5_is_asked_for(adk, tmp_path, option):
    words = ("convert", adk["xtc"], tmp_path / "a.h5md", "--mpi", option)
    code, out, err = run_under_mpi(3, *CLI, *words)
    assert (code, out) == (1, "")
    assert err.count("mdio convert:") == 1
    assert f"{option} needs an h5py built with MPI" in err
    assert "--mpi alone does without" in err and "conda install" in err and "make mpi" in err
    assert list(tmp_path.iterdir()) == []
