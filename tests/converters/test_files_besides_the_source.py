"""Topologies and references on which coordinates depend: changed, replaced, overwritten."""

import shutil

import MDAnalysis as mda
import pytest
from MDAnalysisTests.datafiles import GRO, PSF, XTC

import mdio
from mdio.converters.strategies import conversion
from mdio.core.errors import OutputError, PlanError, SourceError

FEW = {"selection": mdio.Selection(select=[0, 1], center="name CA")}


@pytest.fixture
def tops(tmp_path):
    """Two topologies of the same atoms, of which the second has another selection."""
    one, other = tmp_path / "one.gro", tmp_path / "other.gro"
    shutil.copyfile(GRO, one)
    lines = one.read_text().split("\n")
    other.write_text(
        "\n".join([*lines[:800], *(line.replace(" CA ", " CB ") for line in lines[800:])])
    )
    return one, other


def interrupted(monkeypatch, *args, **options):
    """Run a conversion that ends after some pieces."""
    commit, n_done = conversion.Conversion._commit, []

    def commit_some(self, *arguments):
        if len(n_done) == 3:
            raise KeyboardInterrupt
        n_done.append(1)
        commit(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(conversion.Conversion, "_commit", commit_some)
        with pytest.raises(KeyboardInterrupt):
            mdio.convert(*args, **options)


@pytest.mark.parametrize("how", ["not stored", "universe"])
def test_a_run_with_another_topology_is_not_continued(tmp_path, monkeypatch, tops, how):
    out, options = tmp_path / "m.segments", {"storage": mdio.Storage(segments=10, container="trr")}
    options |= FEW
    if how == "not stored":
        options["storage"] = mdio.Storage(segments=10, container="trr", topology=False)
    else:
        tops = tuple(mda.Universe(str(top)) for top in tops)
        for top in tops:
            top.filename = None
    interrupted(monkeypatch, XTC, out, top=tops[0], **options)
    with pytest.raises(OutputError, match="different conversion was left unfinished"):
        mdio.convert(XTC, out, top=tops[1], resume=True, **options)
    assert mdio.convert(XTC, out, top=tops[0], resume=True, **options).n_frames == 10


def test_an_output_of_another_topology_is_not_complete(tmp_path, tops):
    out, storage = tmp_path / "m.zarr", mdio.Storage(topology=False)
    mdio.convert(XTC, out, top=tops[0], storage=storage, **FEW)
    assert mdio.convert(XTC, out, top=tops[0], storage=storage, resume=True, **FEW).found_complete
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(XTC, out, top=tops[1], storage=storage, resume=True, **FEW)


def test_a_topology_is_not_overwritten(tmp_path, tops):
    before = tops[0].read_bytes()
    for options in ({"stop": 1}, {"storage": mdio.Storage(to="xtc", topology=False)}):
        with pytest.raises(OutputError, match="is the source"):
            mdio.convert(XTC, tops[0], top=tops[0], force=True, select="name CA", **options)
    assert tops[0].read_bytes() == before


def test_frames_are_not_added_to_a_fit_on_another_reference(tmp_path):
    reference, out = tmp_path / "reference.xtc", tmp_path / "m.zarr"
    mdio.convert(XTC, reference, stop=1)
    fit = {"fit": "rot+trans", "fit_select": "name CA", "fit_reference": str(reference)}
    mdio.convert(XTC, out, top=GRO, stop=5, selection=mdio.Selection(**fit))
    rest = tmp_path / "rest.xtc"
    mdio.convert(XTC, rest, start=5)
    mdio.convert(XTC, reference, start=7, stop=8, force=True)
    with pytest.raises(SourceError, match=r"reference\.xtc: was changed since"):
        mdio.append(rest, out, top=GRO)


@pytest.mark.parametrize("out", ["all.zarr", "all.h5md"])
def test_an_ensemble_that_is_centred_is_resumed(adk, tmp_path, out):
    options = {"top": PSF, "selection": mdio.Selection(center="name CA")}
    sources = {"a": tmp_path / "a.xtc", "b": tmp_path / "b.xtc"}
    universe = mda.Universe(PSF, str(adk["xtc"]))
    for path in sources.values():
        with mda.Writer(str(path), 3341) as writer:
            for ts in universe.trajectory[:3]:
                ts.dimensions = [80, 80, 80, 90, 90, 90]
                writer.write(universe.atoms)
    mdio.convert_ensemble(sources, tmp_path / out, **options)
    again = mdio.convert_ensemble(sources, tmp_path / out, resume=True, **options)
    assert all(one.found_complete for one in again.values())
    with pytest.raises(PlanError, match="nothing is added to an ensemble"):
        mdio.convert_ensemble(sources, tmp_path / out, append=True)


def test_indices_in_groups_are_those_of_all_atoms(tmp_path):
    """Of a stored topology as of a file."""
    whole = tmp_path / "whole.zarr"
    mdio.convert(XTC, whole, top=GRO, stop=1)
    groups = {"few": "(index 4:26)"}
    for name, options in (("stored", {}), ("file", {"top": GRO})):
        out = tmp_path / f"{name}.zarr"
        mdio.convert(whole, out, select="name CA", groups=groups, **options)
    kept = [mdio.open(tmp_path / f"{name}.zarr").info.groups["few"] for name in ("stored", "file")]
    assert kept == [2, 2]


def test_a_stride_is_kept_though_one_frame_was(tmp_path):
    first, rest, out = tmp_path / "a.xtc", tmp_path / "b.xtc", tmp_path / "m.zarr"
    mdio.convert(XTC, first, stop=5)
    mdio.convert(XTC, rest, start=5)
    mdio.convert(first, out, step=5)
    mdio.append(rest, out)
    with mdio.open(out) as layout:
        assert layout.read(0, layout.info.n_frames).time.round().tolist() == [0, 500]
    for bad, name in (({"step": 2}, "--step"), ({"stop": 2}, "--stop")):
        with pytest.raises(PlanError, match=f"leave out {name}"):
            mdio.append(rest, out, **bad)
    with pytest.raises(PlanError, match="is zarr already"):
        mdio.append(rest, out, to="h5md")
    with pytest.raises(PlanError, match="leave out --select"):
        mdio.append(rest, out, select=[1])


def test_a_cut_file_that_others_follow_is_not_taken_for_whole(tmp_path):
    cut, rest = tmp_path / "a.xtc", tmp_path / "b.xtc"
    mdio.convert(XTC, cut, stop=5)
    mdio.convert(XTC, rest, start=5)
    cut.write_bytes(cut.read_bytes()[:-1000])
    with pytest.raises(SourceError, match=r"--salvage .* whole frames, or convert with --stop 4 "):
        mdio.convert([cut, rest], tmp_path / "o.zarr", selection=mdio.Selection(end_ps=700))
    assert (
        mdio.convert(cut, tmp_path / "o.zarr", selection=mdio.Selection(end_ps=200)).n_frames == 3
    )


def test_no_option_is_advised_that_a_command_lacks(tmp_path):
    cut = tmp_path / "a.xtc"
    mdio.convert(XTC, cut, stop=5)
    mdio.convert(cut, tmp_path / "o.zarr", stop=3)
    cut.write_bytes(cut.read_bytes()[:-1000])
    for run in (
        lambda: mdio.append(cut, tmp_path / "o.zarr"),
        lambda: mdio.split(cut, tmp_path / "o.segments", 2),
    ):
        with pytest.raises(SourceError, match=r"--salvage .* to take the 4 whole frames$"):
            run()


def test_the_topology_of_another_output_is_not_overwritten(adk, tmp_path):
    mdio.convert(adk["xtc"], tmp_path / "md.zarr", top=PSF, groups={"x": "name CA"}, stop=2)
    before = (tmp_path / "md.x.top.pdb").read_bytes()
    out = tmp_path / "md.x.zarr"
    done = mdio.convert(adk["xtc"], out, top=PSF, select="name CB", stop=2, force=True)
    assert done.topologies == (str(tmp_path / "md.x.zarr.top.pdb"),)
    assert (tmp_path / "md.x.top.pdb").read_bytes() == before
    mdio.convert(adk["xtc"], out, top=PSF, select="name CG", stop=2, force=True)
    assert (tmp_path / "md.x.top.pdb").read_bytes() == before


@pytest.mark.parametrize("selection", ["name CA chainID A", "name CA record_type ATOM"])
def test_a_forgotten_and_is_no_name(tmp_path, selection):
    mdio.convert(XTC, tmp_path / "a.zarr", top=GRO, stop=1)
    with pytest.raises(PlanError, match="Unexpected token"):
        mdio.convert(tmp_path / "a.zarr", tmp_path / "b.zarr", select=selection)
