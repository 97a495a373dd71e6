"""Water residence beside waterdynamics, ion permeation beside a walk from frame to frame."""

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import GRO, XTC

import mdio
from mdio.core.errors import MdioError, PlanError
from mdio.mapreduce.programs.permeation import STATES, IonPermeation
from mdio.mapreduce.programs.residence import WaterResidence, survival_probability

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def solvated():
    """Real water: adenylate kinase in 11,084 molecules of it, 10 frames, a dodecahedral box."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(GRO, XTC)


@pytest.mark.parametrize("n_workers", [None, 2])
@pytest.mark.parametrize(("radius", "around"), [(4.0, "protein"), (6.5, "resid 100 and name CA")])
def test_survival_probability_is_that_of_waterdynamics(solvated, n_workers, radius, around):
    from waterdynamics import SurvivalProbability

    selection = f"name OW and around {radius} ({around})"
    theirs = SurvivalProbability(solvated, selection)
    theirs.run(tau_max=6)
    program = WaterResidence(around=around, radius=radius, tau_max=6)
    result = mdio.map_reduce(XTC, top=GRO, map=program, workers=n_workers)
    found = survival_probability(result)
    np.testing.assert_allclose(found, np.array(theirs.sp_timeseries, float), rtol=1e-12)
    near = [set(solvated.select_atoms(selection).indices) for _ in solvated.trajectory]
    assert result.n_pairs.tolist() == [len(one) for one in near]
    assert result.keys.tolist() == sorted(set.union(*near))
    for key, n_frames, n_stays, longest_ps in zip(
        result.keys,
        *(result.columns[c] for c in ("n_frames", "n_stays", "longest_ps")),
        strict=True,
    ):
        here = "".join(".#"[key in one] for one in near)
        stays = here.replace(".", " ").split()
        assert (n_frames, n_stays) == (here.count("#"), len(stays))
        assert longest_ps == pytest.approx(100 * (max(map(len, stays)) - 1))


def test_frames_that_are_left_out_do_not_break_a_stay(solvated):
    """Every other frame: those that are mapped follow each other."""
    program = WaterResidence(radius=4.0, tau_max=8)
    some = mdio.map_reduce(XTC, top=GRO, map=program, frames=slice(None, None, 2))
    near = [
        set(solvated.select_atoms("name OW and around 4 protein").indices)
        for _ in solvated.trajectory[::2]
    ]
    expected = [1.0] + [
        np.mean(
            [len(set.intersection(*near[t : t + tau + 1])) / len(near[t]) for t in range(5 - tau)]
        )
        for tau in range(1, 5)
    ]
    found = survival_probability(some)
    np.testing.assert_allclose(found[:5], expected, rtol=1e-12)
    assert np.isnan(found[5:]).all()
    twice = mdio.map_reduce(
        {"a": XTC, "b": XTC}, top=GRO, map=program, frames=slice(None, None, 2), workers=2
    )
    np.testing.assert_allclose(survival_probability(twice), found, rtol=1e-12)


def walked(universe, ions, around, thickness):
    """Return {ion: (state, transitions)}, walking through the frames with one state an ion."""
    states, found = {}, {}
    for ts in universe.trajectory:
        cell = ts.triclinic_dimensions[2, 2]
        middle = cell / 2 if around is None else around.positions[:, 2].astype(float).mean()
        for index, place in zip(ions.indices, ions.positions[:, 2].astype(float), strict=True):
            z = (place - middle + cell / 2) % cell - cell / 2
            before = states.get(index)
            if z > thickness / 2:
                now = "above"
            elif z < -thickness / 2:
                now = "below"
            elif before in ("above", "entered from above"):
                now = "entered from above"
            elif before in ("below", "entered from below"):
                now = "entered from below"
            else:
                now = "inside"
            if before not in (None, now):
                steps = found.setdefault(index, np.zeros((5, 5), int))
                steps[STATES.index(before), STATES.index(now)] += 1
            states[index] = now
    none = np.zeros((5, 5), int)
    return {index: (STATES.index(now), found.get(index, none)) for index, now in states.items()}


@pytest.mark.parametrize("around", [None, "protein"])
@pytest.mark.parametrize("n_workers", [None, 2])
def test_permeation_is_that_of_a_walk(solvated, around, n_workers):
    """Waters stand for ions: they are many, and real."""
    ions = solvated.select_atoms("name OW")[::40]
    group = None if around is None else solvated.select_atoms(around)
    expected = walked(solvated, ions, group, 12.0)
    chosen = "index " + " ".join(map(str, ions.indices))
    program = IonPermeation(ions=chosen, around=around, thickness=12.0)
    result = mdio.map_reduce(XTC, top=GRO, map=program, workers=n_workers)
    assert result.keys.tolist() == sorted(expected)
    for row, key in enumerate(result.keys.tolist()):
        assert result.columns["state"][row] == expected[key][0]
        np.testing.assert_array_equal(result.columns["transitions"][row], expected[key][1])
    steps = result.columns["transitions"]
    assert result.columns["n_up"].sum() == steps[:, 2, 0].sum() > 0
    assert result.columns["n_down"].sum() == steps[:, 1, 4].sum() > 0


def test_permeation_without_a_box(adk):
    program = IonPermeation(ions="name CA", around="resid 100", thickness=12.0)
    result = mdio.map_reduce(adk["dcd"], top=adk["psf"], map=program, frames=slice(5))
    assert len(result.keys) == 214
    assert set(result.columns["state"].tolist()) <= set(range(len(STATES)))


def test_permeation_in_a_box_that_is_periodic_along_z_only(tmp_path):
    """It crosses the boundary, not the slab, on its way from above to below."""
    with mdio.Writer(tmp_path / "a.zarr", 1) as writer:
        for z in (30.0, 39.0, 1.0, 10.0):
            writer.write_block(np.array([[0, 0, z]]), box=[0, 0, 40, 90, 90, 90])
    universe = mda.Universe.empty(1, trajectory=True)
    universe.add_TopologyAttr("names", ["NA"])
    result = mdio.map_reduce(tmp_path / "a.zarr", top=universe, map=IonPermeation())
    assert STATES[result.columns["state"][0]] == "below"
    assert result.columns["transitions"][0, 0, 4] == 1


def test_permeation_needs_a_middle(adk):
    with pytest.raises(MdioError, match="no box along z"):
        mdio.map_reduce(adk["dcd"], top=adk["psf"], map=IonPermeation("name CA"))


@pytest.mark.parametrize(
    "program", [IonPermeation("all"), WaterResidence("index 1", around="index 0")]
)
def test_frames_without_positions_are_told(tmp_path, program):
    """As of a TRR with velocities more often than positions: atoms are not somewhere else there."""
    frames = np.full((4, 2, 3), 1.0)
    frames[1::2] = np.nan
    with mdio.Writer(tmp_path / "a.zarr", 2) as writer:
        writer.write_block(frames, box=[40, 40, 40, 90, 90, 90])
    universe = mda.Universe.empty(2)
    with pytest.raises(MdioError, match="no positions"):
        mdio.map_reduce(tmp_path / "a.zarr", top=universe, map=program)
    some = mdio.map_reduce(
        tmp_path / "a.zarr", top=universe, map=program, frames=slice(None, None, 2)
    )
    assert some.n_pairs.tolist() == [len(some.keys)] * 2
    own = {"map": lambda block: ([0], [0], {}), "reduce": lambda *_: {}}
    (note,) = mdio.map_reduce(tmp_path / "a.zarr", **own, frames=[0, 1, 3]).notes
    assert note.startswith("2 of 3 frames (1, 3) have no positions")


def test_frames_without_a_cell_among_others_are_told_of(tmp_path):
    """Of the second of two replicas."""
    for name, without in (("a.zarr", 0), ("b.zarr", 2)):
        with mdio.Writer(tmp_path / name, 2) as writer:
            for frame in range(5):
                box = [0] * 6 if frame < without else [40, 40, 40, 90, 90, 90]
                writer.write_block(np.ones((1, 2, 3)), box=box)
    both = {name: tmp_path / f"{name}.zarr" for name in "ab"}
    program = WaterResidence("index 1", around="index 0")
    for frames, wanted in (
        (None, "b: 2 of 5 frames (0, 1) have no unit cell"),
        (slice(2, None), ""),
        (slice(2), ""),  # all of b
    ):
        result = mdio.map_reduce(both, top=mda.Universe.empty(2), map=program, frames=frames)
        assert [note[: len(wanted)] for note in result.notes] == [wanted] * bool(wanted)


def test_an_ion_without_a_place_is_not_inside(tmp_path):
    """It crosses the boundary while it is nowhere."""
    frames = np.full((5, 2, 3), 1.0)
    frames[3:, 0, 2] = 39
    frames[2, 0] = np.nan
    with mdio.Writer(tmp_path / "a.zarr", 2) as writer:
        writer.write_block(frames, box=[40, 40, 40, 90, 90, 90])
    universe = mda.Universe.empty(2)
    result = mdio.map_reduce(tmp_path / "a.zarr", top=universe, map=IonPermeation("all"))
    assert [STATES[state] for state in result.columns["state"]] == ["above", "below"]
    assert np.argwhere(result.columns["transitions"]).tolist() == [[0, 4, 0]]


def test_no_water_is_near():
    program = WaterResidence(around="index 0", radius=0.1)
    result = mdio.map_reduce(XTC, top=GRO, map=program, frames=[0])
    with pytest.raises(PlanError, match="larger radius"):
        survival_probability(result)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (WaterResidence(radius=-1.0), "cannot be negative"),
        (WaterResidence(water="name CA"), "are among 'protein'"),
        (IonPermeation(ions="name OW", thickness=0.0), "give a positive one"),
        (IonPermeation(ions="name XX"), "selects no atom"),
    ],
)
def test_programs_refuse(program, message):
    with pytest.raises(PlanError, match=message):
        mdio.map_reduce(XTC, top=GRO, map=program)


@pytest.mark.parametrize("name", ["WAT", "OPC"])
def test_the_error_names_the_water_that_there_is(name):
    """As AMBER's topologies have it; what the error says to give works."""
    u = mda.Universe(GRO)
    u.select_atoms("resname SOL").residues.resnames = name
    u.select_atoms("name OW").names = "O"
    with pytest.raises(PlanError, match=f"called {name}: give --set water='") as told:
        mdio.map_reduce(XTC, top=u, map=WaterResidence())
    selection = str(told.value).partition("water='")[2].partition("'")[0]
    result = mdio.map_reduce(XTC, top=u, map=WaterResidence(water=selection))
    assert len(result.keys) > 0
    assert set(u.atoms[result.keys].names) == {"O"}


def test_boxes_that_a_fit_did_not_turn_are_told_of(tmp_path):
    selection = mdio.Selection(fit="rot+trans", fit_select="name CA")
    mdio.convert(XTC, tmp_path / "a.zarr", top=GRO, selection=selection, stop=2)
    for program in (WaterResidence(tau_max=1), IonPermeation()):
        fitted = mdio.map_reduce(tmp_path / "a.zarr", map=program)
        assert sum("before the fit" in note for note in fitted.notes) == 1
        before = mdio.map_reduce(XTC, top=GRO, map=program, frames=slice(1))
        assert not any("before the fit" in note for note in before.notes)


@pytest.mark.parametrize(
    "program",
    [
        WaterResidence(water="name OW", around="resid 1:20 and protein", radius=6.0),
        IonPermeation(ions="resid 300:302 and name OW", around="protein and resid 1:20"),
    ],
    ids=["residence", "permeation"],
)
def test_keys_of_a_group_are_those_of_the_full_topology(tmp_path, program):
    groups = {"some": "(resid 1:20 and protein) or name OW"}
    mdio.convert(XTC, tmp_path / "a.zarr", top=GRO, groups=groups, selection=mdio.Selection(stop=3))
    full = mdio.map_reduce(tmp_path / "a.zarr", map=program, top=GRO)
    group = mdio.map_reduce(tmp_path / "a.zarr", map=program, top=GRO, group="some")
    assert len(full.keys) and full.keys.tolist() == group.keys.tolist()
    assert full.keys.min() > len(mda.Universe(GRO).select_atoms("protein"))


def test_keys_of_a_complete_group_are_those_of_the_full_topology(tmp_path):
    mdio.convert(XTC, tmp_path / "a.zarr", top=GRO, groups={"ca": "name CA"}, stop=2)
    program = IonPermeation(ions="all")
    found = mdio.map_reduce(tmp_path / "a.zarr", map=program, top=GRO, group="ca")
    expected = mda.Universe(GRO).select_atoms("name CA").ix
    assert found.keys.tolist() == expected.tolist()
