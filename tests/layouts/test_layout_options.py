"""Options of layouts: unknown ones are refused, and ``verify=`` gets where it must."""

import pickle

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import GSD
from suites.files_of_others import write_mdtraj
from suites.native_files import made_up, write_dcd, write_ncdf

import mdio
from mdio.analysis.kernels.geometry import RMSD
from mdio.analysis.plan import Request
from mdio.cli.main import main
from mdio.converters.convert import prepare
from mdio.converters.options import ConversionOptions
from mdio.core.errors import FrameRangeError, OptionError, PlanError
from mdio.layouts.registry import layout_name_for_output
from mdio.readers.reader import LayoutReader

TARGETS = ["zarr", "h5md", "segments", "xtc", "trr", "dcd", "ncdf"]


@pytest.fixture
def make(adk, tmp_path):
    def make(target):
        path = tmp_path / f"a.{target}"
        mdio.convert(adk["xtc"], path, stop=4)
        return path

    return make


@pytest.mark.parametrize("target", TARGETS)
def test_unknown_options_are_refused_by_name(make, target):
    path = make(target)
    with pytest.raises(
        TypeError, match=rf"the layout {target} has no option 'grop'; it has .*"
    ) as e:
        mdio.open(path, grop="ca")
    assert "fields" in str(e.value) and str(e.value).endswith("and verify")
    assert ("group" in str(e.value).split("it has")[1]) == (target in ("zarr", "h5md"))
    with pytest.raises(OptionError, match="no option 'grop'"):
        mdio.open([path, path], grop="ca")


@pytest.mark.parametrize("target", ["segments", "xtc", "trr", "dcd", "ncdf"])
def test_groups_are_refused_where_there_are_none(make, target):
    path = make(target)
    with pytest.raises(TypeError, match="no option 'group'"):
        mdio.open(path, group="ca")
    with pytest.raises(TypeError, match="no option 'group'"):
        LayoutReader(str(path), group="ca")
    with pytest.raises(PlanError, match="no stored groups"):
        mdio.analyze(path, kernel=RMSD(), group="ca")


def test_what_is_said_of_sources_is_told_from_options_of_conversions(adk, tmp_path):
    for name in ("length_unit", "dt", "format"):
        with pytest.raises(OptionError, match=f"source_options={{'{name}': ...}}"):
            mdio.convert(adk["xtc"], tmp_path / "o.zarr", **{name: "nm"})


@pytest.mark.parametrize("target", TARGETS)
def test_a_number_of_atoms_may_be_given_to_all(make, target):
    with mdio.open([make(target)] * 2, n_atoms=3341) as layout:
        assert layout.info.n_frames == 8


@pytest.mark.parametrize("dt", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["a.xyz", "a.dcd", "a.h5", "a.nc", "a.gsd"])
def test_intervals_that_are_none_are_refused(tmp_path, name, dt):
    write_mdtraj(tmp_path / "a.h5")
    (tmp_path / "a.xyz").write_text("1\n\nC 1 2 3\n")
    write_dcd(tmp_path / "a.dcd", made_up(2, 3))
    write_ncdf(tmp_path / "a.nc", ("coordinates",))
    path = tmp_path / name if name != "a.gsd" else GSD
    with pytest.raises(OptionError, match=r"--timestep is .*; give a positive number"):
        _ = mdio.open(path, dt=dt).info


def test_a_generic_layout_passes_options_to_the_reader(tmp_path):
    from MDAnalysisTests.datafiles import TRZ

    with mdio.open(TRZ, n_atoms=8184) as layout:
        assert layout.info.n_atoms == 8184


@pytest.mark.parametrize("target", ["zarr", "h5md", "segments"])
@pytest.mark.parametrize("verify", [True, False])
def test_verify_reaches_the_layout(adk, make, target, verify):
    path = make(target)
    reader = mda.Universe(str(adk["psf"]), str(path), verify=verify).trajectory
    assert reader.layout.verify is verify
    assert reader.copy().layout.verify is verify
    for source in (path, [path, path]):
        with mdio.open(source, verify=verify) as layout:
            again = pickle.loads(pickle.dumps(layout))
            assert next(one.verify for one in getattr(again, "sources", [again])) is verify
        request = Request(source, RMSD(), verify=verify)
        plan = request.plan()
        for sent in (plan.layout, pickle.loads(pickle.dumps(plan.for_workers())).layout):
            sources = getattr(sent, "sources", [sent])
            assert {one.verify for one in sources} == {verify}
        plan.layout.close()
        out = path.with_name("b.zarr")
        conversion = prepare(source, out, ConversionOptions.of(verify=verify))
        sent = pickle.loads(pickle.dumps(conversion.view)).source
        assert {one.verify for one in getattr(sent, "sources", [sent])} == {verify}
        conversion.close()


@pytest.mark.parametrize("target", ["zarr", "h5md", "segments"])
def test_no_verify_gives_the_same_numbers(adk, make, tmp_path, target, capsys):
    path = make(target)
    assert main(["convert", str(path), str(tmp_path / "b.dcd"), "--no-verify", "--verify"]) == 0
    assert "verified" in capsys.readouterr().out
    words = ["analyze", "rmsd", "-o", str(tmp_path / "o.csv"), "--quiet", "--no-verify"]
    assert main([*words, str(path)]) == 0
    trusting = (tmp_path / "o.csv").read_text()
    assert main([*words[:-1], str(path)]) == 0
    assert (tmp_path / "o.csv").read_text() == trusting


def test_verify_of_an_open_layout_is_its_own(make):
    with (
        mdio.open(make("zarr")) as layout,
        pytest.raises(PlanError, match="open the layout with verify=False instead"),
    ):
        mdio.analyze(layout, kernel=RMSD(), verify=False)


def test_a_suffix_that_is_misspelt():
    with pytest.raises(
        PlanError, match=r"'\.zar' names no layout \(did you mean '\.zarr'\?\); use one of"
    ):
        layout_name_for_output("md.zar")


def test_a_mask_chooses_atoms(adk):
    mask = np.zeros(3341, bool)
    mask[[3, 5]] = True
    with mdio.open(adk["dcd"]) as layout:
        expected = layout.read(0, 2, atoms=[3, 5]).positions
        assert np.array_equal(layout.read(0, 2, atoms=mask).positions, expected)
        for wrong in (mask[:10], [3.5]):
            with pytest.raises(FrameRangeError, match=r"choose among|list of numbers"):
                layout.read(0, 2, atoms=wrong)


@pytest.mark.parametrize("target", ["zarr", "xtc"])
def test_a_format_that_nobody_reads(make, target):
    with pytest.raises(OptionError, match=r"no format 'XTCC' \(did you mean 'XTC'\?\)"):
        _ = mdio.open(make(target), format="xtcc").info


def test_paths_as_bytes(make):
    path = make("xtc")
    assert mdio.open(bytes(path)).info.n_frames == mdio.open([bytes(path)]).info.n_frames == 4


def test_misspelt_options_of_a_universe(adk, make):
    with pytest.warns(UserWarning, match=r"no reader has the option gruop \(did you mean 'group'"):
        mda.Universe(adk["psf"], str(make("zarr")), gruop="ca")


def test_options_that_a_universe_does_not_take(adk, make):
    path = str(make("zarr"))
    for options, says in (
        ({"length_unit": "nm"}, "no reader has the option length_unit; convert the file with it"),
        ({"convert_units": False}, "angstrom and ps, .* also with convert_units=False"),
    ):
        with pytest.warns(UserWarning, match=says):
            mda.Universe(adk["psf"], path, **options)


def test_arguments_of_another_kind(make):
    path = make("xtc")
    with pytest.raises(PlanError, match="the reducer is 'mean'"):
        mdio.analyze(path, kernel="rmsd", reducer="mean")
    for wrong in ({"passes": 2.5}, {"allow_lossy": -1}):
        with pytest.raises(PlanError, match=r"whole number|positive step"):
            mdio.advise(path, **wrong)
    result = mdio.analyze(path, kernel="rmsd", cache=path.parent / "cache", cache_size="1M")
    assert result.n_frames == 4
    with pytest.raises(OptionError, match="cache_size: '1Q' is not a size"):
        mdio.analyze(path, kernel="rmsd", cache=path.parent / "cache", cache_size="1Q")


def test_what_is_no_path_and_no_number_is_told(make):
    path = make("zarr")
    with path.with_name("file").open("w+b") as file:
        for wrong in (
            lambda: mdio.open(file),
            lambda: mdio.sample(file),
            lambda: mdio.analyze(file, kernel="rmsd"),
            lambda: mdio.verify(file),
            lambda: mdio.verify([path]),
            lambda: mdio.repair([path]),
        ):
            with pytest.raises(PlanError, match="is not a path; give"):
                wrong()
    with mdio.open(path) as layout:
        with pytest.raises(TypeError, match=r"give an mdio\.FrameBlock"):
            layout.read(0, 1, out=np.empty((1, layout.info.n_atoms, 3), np.float32))
        for run in ((1.0, 2.0), ("0", "1"), (0, None)):
            with pytest.raises(FrameRangeError, match="give whole numbers from 0 to 4"):
                layout.read(*run)
    for wrong_number in ({"seed": None}, {"batch": 2.5}, {"pool_nbytes": "1G"}):
        with pytest.raises(PlanError, match="give whole numbers"):
            mdio.sample(path, **wrong_number)
    for wanted in (mdio.sample, mdio.verify, len, lambda number: None):
        with pytest.raises(PlanError, match=r"wanted is .*verify\.sample\(0\.1\)"):
            mdio.verify(path, wanted=wanted)
    assert mdio.verify(path, workers=2) == mdio.verify(path)
