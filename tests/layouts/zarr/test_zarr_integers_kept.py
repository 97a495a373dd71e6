"""An XTC's own integers are what Zarr keeps of it unless floats are asked for."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import zarr
from MDAnalysis.lib.formats.libmdaxdr import XTCFile
from numpy.testing import assert_array_equal
from suites.outputs import as_options
from suites.xtc_cases import VECTORS_NM

import mdio
from mdio.cli.main import main
from mdio.core.errors import PlanError

VALUE = "particles/trajectory/position/value"
TEN = np.float32(10)


def write(path, frames_nm, first=0, precision=1000.0):
    with XTCFile(str(path), "w") as file:
        for number, x in enumerate(frames_nm, first):
            file.write(x, VECTORS_NM, number, float(number), precision)
    return path


def angstrom(path):
    """Positions as MDAnalysis makes them."""
    with XTCFile(str(path)) as file:
        return np.array([frame.x for frame in file]) * TEN


def through_zarr(path, name=VALUE):
    return zarr.open(path, mode="r")[name][:]


def codec_names(path):
    (shards,) = zarr.open(path, mode="r")[VALUE].metadata.to_dict()["codecs"]
    return [codec["name"] for codec in shards["configuration"]["codecs"]]


@pytest.fixture
def frames_nm():
    rng = np.random.default_rng(7)
    start = 4 * rng.random((1, 40, 3))
    return (start + 0.02 * rng.normal(size=(30, 40, 3)).cumsum(axis=0)).astype(np.float32)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_default_for_an_xtc(adk, tmp_path, workers):
    out = tmp_path / "adk.zarr"
    result = mdio.convert(adk["xtc"], out, workers=workers)
    assert (result.plan.precision_source, result.plan.compression) == ("xtc", None)
    assert any("--precision none" in note for note in result.plan.notes)
    assert result.nbytes_out < 1.1 * adk["xtc"].stat().st_size
    assert codec_names(out)[0] == "mdio.quantised"
    assert_array_equal(through_zarr(out).view("u4"), angstrom(adk["xtc"]).view("u4"))
    compared = mdio.verify(out, adk["xtc"])
    assert compared.ok
    assert (compared.frames_compared, compared.allowed_diff_angstrom) == (98, 0.0)


@pytest.mark.parametrize("layout", ["zarr", "h5md"])
def test_floats_in_full(adk, tmp_path, layout):
    out = tmp_path / f"adk.{layout}"
    plan = mdio.convert(adk["xtc"], out, precision="none").plan
    assert (plan.precision, plan.compression) == (None, None)
    assert not any("integers" in note for note in plan.notes)
    with mdio.open(out) as ours:
        assert ours.info.nbytes > 12 * 98 * 3341
        assert_array_equal(ours.read(0, 98).positions, angstrom(adk["xtc"]))
    if layout == "zarr":
        assert codec_names(out)[0] == "bytes"


def test_h5md_holds_floats_for_stock_readers(adk, tmp_path):
    plan = mdio.convert(adk["xtc"], tmp_path / "adk.h5md", stop=3).plan
    assert (plan.precision, plan.compression) == (None, None)


def test_other_sources_keep_floats(adk, tmp_path):
    plan = mdio.convert(adk["dcd"], tmp_path / "adk.zarr", stop=3).plan
    assert (plan.precision, plan.compression, plan.notes) == (None, None, ())


def test_transformed_positions_are_floats(adk, tmp_path):
    options = {"top": adk["psf"], "center": "name CA", "stop": 3}
    plan = mdio.convert(adk["xtc"], tmp_path / "adk.zarr", **as_options(options)).plan
    assert plan.precision is None


def test_reading_through_zarr_needs_no_mdanalysis(frames_nm, tmp_path):
    out = tmp_path / "a.zarr"
    source = write(tmp_path / "a.xtc", frames_nm)
    mdio.convert(source, out)
    code = (
        f"import sys, zarr; a = zarr.open({str(out)!r}, mode='r')[{VALUE!r}][:];"
        "assert 'MDAnalysis' not in sys.modules; print(a.tobytes().hex())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert bytes.fromhex(run.stdout) == angstrom(source).tobytes()


def test_importing_mdio_imports_no_mdanalysis():
    code = "import sys, mdio, mdio.layouts.codecs.zarr_plugin; print('MDAnalysis' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_joined_files_of_one_precision(frames_nm, tmp_path):
    sources = [
        write(tmp_path / "a.xtc", frames_nm[:17]),
        write(tmp_path / "b.xtc", frames_nm[17:], first=17),
    ]
    out = tmp_path / "a.zarr"
    assert (
        mdio.convert(sources, out, storage=mdio.Storage(chunk_frames=8)).plan.precision_source
        == "xtc"
    )
    assert_array_equal(through_zarr(out), np.concatenate([angstrom(path) for path in sources]))


@pytest.mark.parametrize("name", ["b.zarr", "b.h5md"])
def test_an_xtc_joined_with_what_was_made_of_one(frames_nm, tmp_path, name):
    sources = [
        write(tmp_path / "a.xtc", frames_nm[:17]),
        write(tmp_path / "b.xtc", frames_nm[17:], first=17),
    ]
    storage = mdio.Storage(chunk_frames=8)
    mdio.convert(sources[1], tmp_path / name, compression="rigid", storage=storage)
    out = tmp_path / "a.zarr"
    plan = mdio.convert([sources[0], tmp_path / name], out, storage=storage).plan
    assert (plan.precision, plan.precision_source) == (0.01, "xtc")
    assert_array_equal(through_zarr(out), np.concatenate([angstrom(path) for path in sources]))


@pytest.mark.parametrize("precision", [None, "auto"])
def test_joined_files_that_differ_in_precision(frames_nm, tmp_path, precision):
    sources = [
        write(tmp_path / "a.xtc", frames_nm[:17]),
        write(tmp_path / "b.xtc", frames_nm[17:], first=17, precision=100.0),
    ]
    out = tmp_path / "a.zarr"
    plan = mdio.convert(sources, out, precision=precision).plan
    assert (plan.precision, plan.precision_source) == (None, None)
    assert any("differ in their precision" in note for note in plan.notes)
    assert codec_names(out)[0] == "bytes"
    assert_array_equal(through_zarr(out), np.concatenate([angstrom(path) for path in sources]))


def test_frames_of_one_file_that_differ_in_precision(frames_nm, tmp_path):
    source, out = tmp_path / "a.xtc", tmp_path / "a.zarr"
    parts = [
        write(tmp_path / "1.xtc", frames_nm[:12]),
        write(tmp_path / "2.xtc", frames_nm[12:], first=12, precision=237.0),
    ]
    source.write_bytes(b"".join(part.read_bytes() for part in parts))
    mdio.convert(source, out, storage=mdio.Storage(chunk_frames=5))
    assert_array_equal(through_zarr(out), np.concatenate([angstrom(part) for part in parts]))


def test_frames_too_small_to_be_compressed(frames_nm, tmp_path):
    source = write(tmp_path / "a.xtc", frames_nm[:, :9])
    out = tmp_path / "a.zarr"
    assert mdio.convert(source, out).plan.precision is None
    assert_array_equal(through_zarr(out), angstrom(source))


def test_selections_groups_and_chunks_of_some_atoms(adk, tmp_path):
    out = tmp_path / "adk.zarr"
    options = {"top": adk["psf"], "select": "protein and not name H*", "groups": {"ca": "name CA"}}
    plan = mdio.convert(
        adk["xtc"], out, storage=mdio.Storage(chunk_atoms=300, chunk_frames=16), **options
    ).plan
    assert plan.precision_source == "xtc"
    import MDAnalysis as mda

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
        kept = universe.select_atoms("protein and not name H*")
        expected = angstrom(adk["xtc"])
        assert_array_equal(through_zarr(out), expected[:, kept.indices])
        alphas = kept.select_atoms("name CA").indices
        universe.trajectory.close()
    assert_array_equal(through_zarr(out, "particles/ca/position/value"), expected[:, alphas])


def test_segments_of_an_xtc(frames_nm, tmp_path):
    source = write(tmp_path / "a.xtc", frames_nm)
    mdio.split(source, tmp_path / "a.segments", 3)
    plan = mdio.convert(tmp_path / "a.segments", tmp_path / "a.zarr").plan
    assert plan.precision_source == "xtc"
    assert_array_equal(through_zarr(tmp_path / "a.zarr"), angstrom(source))


def test_a_zarr_tree_hands_its_integers_on(frames_nm, tmp_path):
    source = write(tmp_path / "a.xtc", frames_nm)
    for first, second in (("a.xtc", "b.zarr"), ("b.zarr", "c.zarr"), ("c.zarr", "d.segments")):
        result = mdio.convert(
            tmp_path / first, tmp_path / second, stop=20, storage=mdio.Storage(container=None)
        )
        if second != "d.segments":
            assert result.plan.precision_source == "xtc"
    assert_array_equal(through_zarr(tmp_path / "c.zarr"), angstrom(source)[:20])


@pytest.mark.parametrize("compression", ["zstd", "lz4:9", "bitpack", "rigid"])
def test_a_compressor_for_the_integers(frames_nm, tmp_path, compression):
    source = write(tmp_path / "a.xtc", frames_nm)
    out = tmp_path / "a.zarr"
    plan = mdio.convert(source, out, compression=compression).plan
    assert (plan.precision_source, plan.compression) == ("xtc", compression)
    assert_array_equal(through_zarr(out), angstrom(source))


@pytest.mark.parametrize("compression", ["gzip:1", "zstd:19"])
def test_a_compressor_that_integers_do_not_have(frames_nm, tmp_path, compression):
    source = write(tmp_path / "a.xtc", frames_nm)
    out = tmp_path / "a.zarr"
    plan = mdio.convert(source, out, compression=compression).plan
    assert (plan.precision, plan.compression) == (None, compression)
    assert any(f"--compression {compression} is not for" in note for note in plan.notes)
    assert_array_equal(through_zarr(out), angstrom(source))
    with pytest.raises(PlanError, match="--compression"):
        mdio.convert(source, tmp_path / "b.zarr", compression=compression, precision="auto")


def test_an_xtc_cannot_hold_floats_in_full(frames_nm, tmp_path):
    source = write(tmp_path / "a.xtc", frames_nm)
    with pytest.raises(PlanError, match="XTC files hold integers"):
        mdio.convert(source, tmp_path / "b.xtc", precision="none")
    mdio.convert(source, tmp_path / "b.dcd", precision="none")
    mdio.convert(
        source, tmp_path / "b.h5md", precision="none", storage=mdio.Storage(contiguous=True)
    )


def test_the_command_line_says_so(frames_nm, tmp_path, capsys):
    source = write(tmp_path / "a.xtc", frames_nm)
    density = source.stat().st_size / (30 * 40)
    assert main(["convert", str(source), str(tmp_path / "a.zarr"), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "0.01 angstrom, all that the XTC holds" in plan
    assert f"source: {density:.2f} (usually about the same)" in plan
    assert "--precision none" in plan
    words = ["--compression", "rigid", "--dry-run"]  # which is smaller
    assert main(["convert", str(source), str(tmp_path / "a.zarr"), *words]) == 0
    assert "usually about the same" not in capsys.readouterr().out
    assert main(["convert", str(source), str(tmp_path / "a.zarr")]) == 0
    assert "--precision none" in capsys.readouterr().out
    words = ["--precision", "none", "--dry-run"]
    assert main(["convert", str(source), str(tmp_path / "b.zarr"), *words]) == 0
    plan = capsys.readouterr().out
    assert "float32, not rounded" in plan
    assert f"source: {density:.2f}" in plan
    assert "integers" not in plan
