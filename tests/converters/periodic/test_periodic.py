"""``--pbc`` and ``--center`` beside MDAnalysis' transformations, by any number of workers."""

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis import transformations
from MDAnalysisTests.datafiles import GRO, TPR, XTC
from numpy.testing import assert_allclose, assert_array_equal
from oracles import plain
from scipy.sparse.csgraph import minimum_spanning_tree
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.converters.periodic import TransformedLayout, unpack_shifts
from mdio.converters.strategies.conversion import Conversion
from mdio.core.boxes import vectors_from_boxes
from mdio.core.errors import PlanError

N_FRAMES = 3
PART = "protein or (resid 300 to 340 and name OW HW1)"
"""Some molecules whole, of others two atoms of three."""


@pytest.fixture(scope="module")
def universe():
    """Of the kept atoms and whole molecules around them: MDAnalysis takes minutes for all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u = mda.Universe(TPR, XTC)
    kept = u.select_atoms("(protein or resid 300 to 340) and not name MW")
    frames = np.array([kept.positions.copy() for _ in u.trajectory[:N_FRAMES]])
    cells = np.array([u.dimensions.copy() for _ in u.trajectory[:N_FRAMES]])
    return mda.Merge(kept), frames, cells


def wanted(universe, frames, cells, *steps):
    """Return positions after some steps, each a transformation of MDAnalysis."""
    universe.load_new(frames.copy(), dimensions=cells)  # which are changed in place
    picked = universe.select_atoms(PART)
    found = []
    for ts in universe.trajectory:
        for step in steps:
            step(ts)
        found.append(picked.positions.copy())
    return np.array(found)


def made(tmp_path, select=PART, workers=1, **options):
    out = tmp_path / "a.zarr"
    given = {"top": TPR, "select": select, "stop": N_FRAMES, "chunk_frames": 1, **options}
    mdio.convert(XTC, out, workers=workers, force=True, precision="none", **as_options(given))
    with mdio.open(out) as layout:
        return layout.read(0, layout.info.n_frames).positions


def by_molecules(atoms):
    def step(ts):
        atoms.wrap(compound="fragments", center="com")
        return ts

    return step


@pytest.mark.parametrize(
    ("pbc", "center"),
    [
        *[(pbc, None) for pbc in ("unwrap", "mol", "wrap", "nojump")],
        *[(pbc, "protein") for pbc in ("whole", "mol", "atom", "nojump", None)],
    ],
)
def test_as_transformations(universe, tmp_path, pbc, center):
    universe, frames, cells = universe
    universe.load_new(frames[:1].copy(), dimensions=cells[:1])
    everyone = universe.atoms
    centred = [transformations.center_in_box(universe.select_atoms("protein"))] * bool(center)
    whole = transformations.unwrap(everyone)
    steps = {
        "whole": [whole, *centred, *[by_molecules(everyone)] * bool(center)],
        "mol": [whole, *centred, by_molecules(everyone)],
        "atom": [*centred, transformations.wrap(everyone)],
        "nojump": [transformations.NoJump(), *centred],
        None: centred,
    }
    steps |= {"unwrap": steps["whole"], "wrap": steps["atom"]}
    found = made(tmp_path, pbc=pbc, center=center)
    assert_allclose(found, wanted(universe, frames, cells, *steps[pbc]), atol=1e-3)


WATERS = "resid 300 to 340"


@pytest.mark.parametrize("center", [None, f"{WATERS} and name OW"])
def test_brought_together(universe, tmp_path, center):
    """Each water is next to one of the others as it is across the box; the rest lies around."""
    cells = universe[2]
    select = WATERS if center is None else f"protein or {WATERS}"
    found = made(tmp_path, f"({select}) and not name MW", pbc="cluster", center=center)
    waters = found[:, -41 * 3 :].reshape(N_FRAMES, 41, 3, 3)
    assert np.linalg.norm(waters[:, :, 1:] - waters[:, :, :1], axis=-1).max() < 1.2
    for centres, first, cell in zip(waters.mean(axis=2), waters[:, :, 0], cells, strict=True):
        plain = mda.lib.distances.distance_array(centres, centres)
        apart = mda.lib.distances.distance_array(centres, centres, cell)
        tree = minimum_spanning_tree(apart).tocoo()
        assert_allclose(plain[tree.row, tree.col], tree.data, atol=1e-3)
        if center is not None:
            middle = mda.lib.mdamath.triclinic_vectors(cell).sum(axis=0) / 2
            assert_allclose(first.mean(axis=0), middle, atol=1e-3)


def test_verified_and_read_in_any_order(tmp_path):
    made(tmp_path, pbc="nojump", center="protein")
    assert mdio.verify(tmp_path / "a.zarr", XTC, top=TPR).ok


@pytest.fixture(scope="module")
def wandering(tmp_path_factory):
    """Atoms that cross boundaries of a skewed cell that breathes, all the time; wrapped."""
    rng = np.random.default_rng(3)
    cell = np.array([21, 24, 19, 70, 100, 80], np.float32)
    cells = np.tile(cell, (60, 1))
    cells[:, :3] *= 1 + 0.01 * rng.uniform(-1, 1, (60, 1)).astype(np.float32)
    walk = np.cumsum(rng.uniform(-3, 3.3, (60, 25, 3)), axis=0).astype(np.float32)
    path = tmp_path_factory.mktemp("walk") / "walk.xtc"
    u = mda.Universe.empty(25, trajectory=True)
    with mda.Writer(str(path), 25) as writer:
        for frame, row in enumerate(walk):
            u.dimensions = cells[frame]
            u.atoms.positions = row
            u.atoms.wrap()
            u.trajectory.ts.frame, u.trajectory.ts.time = frame, frame
            writer.write(u.atoms)
    v = mda.Universe.empty(25)
    v.load_new(str(path))
    v.trajectory.add_transformations(transformations.NoJump())
    return path, np.array([ts.positions.copy() for ts in v.trajectory])


@pytest.mark.parametrize(("workers", "chunk_frames"), [(1, 7), (2, 1), (3, 7), (2, 64)])
@pytest.mark.parametrize(
    "frames", [{}, {"start": 11}, {"start": 5, "stop": 50, "step": 6}, {"dt_ps": 2, "end_ps": 40}]
)
def test_nojump_in_parallel(wandering, tmp_path, workers, chunk_frames, frames):
    path, every = wandering
    out = tmp_path / "a.zarr"
    atoms = np.array([20, 3, 4, 11])
    how = {"select": atoms, "chunk_frames": chunk_frames, "pbc": "nojump", "precision": "none"}
    mdio.convert(path, out, workers=workers, **as_options({**how, **frames}))
    picked = (
        slice(None, 41, 2)
        if "dt_ps" in frames
        else slice(*map(frames.get, ("start", "stop", "step")))
    )
    with mdio.open(out) as layout:
        found = layout.read(0, layout.info.n_frames).positions
    assert_allclose(found, every[picked][:, atoms], atol=1e-3)
    assert np.abs(every).max() > 60


@pytest.mark.parametrize(("workers", "chunk_frames"), [(1, 7), (2, 1), (3, 7), (2, 64)])
@pytest.mark.parametrize("frames", [{}, {"start": 11}, {"start": 5, "stop": 50, "step": 6}])
def test_steps_are_added_up_in_parallel(wandering, tmp_path, workers, chunk_frames, frames):
    """As by one worker, to the bit."""
    path, _ = wandering
    with mdio.open(path) as layout:
        block = layout.read(0, 60)
    expected = plain.follow_steps(block.positions, vectors_from_boxes(block.box).astype(float))
    results = []
    for n in sorted({1, workers}):
        out = tmp_path / f"{n}.zarr"
        how = {"chunk_frames": chunk_frames, "pbc": "toroidal", "precision": "none"}
        mdio.convert(path, out, workers=n, **as_options({**how, **frames}))
        with mdio.open(out) as layout:
            results.append(layout.read(0, layout.info.n_frames).positions)
    picked = slice(*map(frames.get, ("start", "stop", "step")))
    assert_allclose(results[0], expected[picked], atol=1e-4)
    assert_array_equal(results[0], results[-1])


@pytest.mark.parametrize("pbc", ["nojump", "toroidal"])
@pytest.mark.parametrize("workers", [1, 3])
def test_frames_without_positions_hide_no_jumps(tmp_path, pbc, workers):
    """As those of a TRR with velocities more often than positions."""
    rng = np.random.default_rng(6)
    walk = rng.uniform(0, 20, (10, 3)) + np.cumsum(rng.uniform(-0.2, 0.7, (40, 10, 3)), axis=0)
    lost = np.zeros((40, 10), bool)
    lost[6:9] = lost[12:30, 4] = True
    frames = np.where(lost[:, :, np.newaxis], np.nan, walk % 20).astype(np.float32)
    u = mda.Universe.empty(10, trajectory=True)
    u.load_new(frames, dimensions=np.array([20, 20, 20, 90, 90, 90]))
    u.atoms.write(tmp_path / "a.dcd", frames="all")
    out = tmp_path / "a.zarr"
    options = as_options({"chunk_frames": 7, "pbc": pbc})
    mdio.convert(tmp_path / "a.dcd", out, workers=workers, **options)
    with mdio.open(out) as layout:
        found = layout.read(0, 40).positions
    expected = np.where(lost[:, :, np.newaxis], np.nan, walk - walk[0] + walk[0] % 20)
    assert_allclose(found, expected, atol=1e-3)
    assert (walk[-1] // 20 != walk[0] // 20).sum() > 10


def test_places_of_long_ago_are_searched_for_once(tmp_path, monkeypatch):
    """Those of atoms that were lost, or never had one, before each of many runs."""
    frames = np.full((60, 3, 3), 1.0)
    frames[:, 0] = frames[5:, 1] = np.nan
    frames[30:, 2] = 19
    read, counts = TransformedLayout._source_frames, []

    def spy(layout, start, stop, *arguments):
        counts.append(stop - start)
        return read(layout, start, stop, *arguments)

    monkeypatch.setattr(TransformedLayout, "_source_frames", spy)
    u = mda.Universe.empty(3, trajectory=True)
    u.load_new(frames.astype(np.float32), dimensions=np.array([20, 20, 20, 90, 90, 90]))
    u.atoms.write(tmp_path / "a.dcd", frames="all")
    with mdio.open(tmp_path / "a.dcd") as source:
        layout = TransformedLayout(source.path, source=source, top=None, pbc="nojump")
        layout.prepare_transform(None)
        found = [unpack_shifts(layout.count_crossings((n, n + 5))) for n in range(0, 55, 5)]
    assert [shifts.tolist() for shifts in found if shifts.any()] == [[0] * 6 + [1] * 3]
    assert sum(counts) < 2 * 60


def test_few_counts_are_kept(wandering, tmp_path, monkeypatch):
    """What lies between two of them is followed again."""
    monkeypatch.setattr("mdio.converters.periodic.SHIFTS_NBYTES", 1)
    monkeypatch.setattr("mdio.converters.periodic.RUN_NBYTES", 12 * 25 * 2)
    path, every = wandering
    for name in ("a.h5md", "a.segments"):
        own = {"chunk_frames": 2} if name == "a.h5md" else {"segments": 9}
        mdio.convert(
            path,
            tmp_path / name,
            workers=2,
            selection=mdio.Selection(pbc="nojump"),
            **as_options(own),
        )
        with mdio.open(tmp_path / name) as layout:
            assert_allclose(layout.read(0, 60).positions, every, atol=0.006)


def test_one_worker_reads_once(wandering, tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(
        "mdio.converters.periodic.TransformedLayout.count_crossings", lambda *_: counted.append(1)
    )
    mdio.convert(
        wandering[0],
        tmp_path / "a.zarr",
        selection=mdio.Selection(pbc="nojump"),
        storage=mdio.Storage(chunk_frames=4),
    )
    assert not counted


def test_the_plan_tells_what_it_costs(wandering, tmp_path, capsys):
    out = str(tmp_path / "a.zarr")
    command = ["convert", str(wandering[0]), out, "--pbc", "nojump", "--dry-run"]
    assert main([*command, "-w", "2"]) == 0
    told = capsys.readouterr().out
    assert "read twice: 2 workers count" in told
    assert main([*command, "-w", "1"]) == 0
    told = capsys.readouterr().out
    assert "read once, by one worker" in told
    assert "for diffusion take --pbc toroidal" in told
    assert main([*command, "--stop", "1"]) == 0
    assert "for diffusion" not in capsys.readouterr().out
    assert main([*command[:4], "toroidal", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "--pbc toroidal follows atoms" in told
    assert "for diffusion" not in told


@pytest.mark.parametrize(
    ("pbc", "center", "told"),
    [
        ("whole", None, "214 molecules made whole, "),
        ("mol", "protein", "the centre of 3,341 atoms moved, 215 put into the box"),
        (
            "cluster",
            "protein",
            "1 molecule brought together, the centre of 3,341 atoms moved, 214 put into the box",
        ),
        ("atom", None, "one by one"),
    ],
)
def test_the_plan_tells_of_molecules(tmp_path, capsys, pbc, center, told):
    waters = "resid 215 to 428 and resname SOL and name OW"
    select = waters if center is None else f"protein or ({waters})"
    command = ["convert", XTC, str(tmp_path / "a.xtc"), "-s", TPR, "--select", select]
    center = [] if center is None else ["--center", center]
    assert main([*command, "--pbc", pbc, *center, "--dry-run"]) == 0
    assert told in capsys.readouterr().out


def test_only_what_is_needed_is_read(tmp_path, monkeypatch):
    read = []
    run = Conversion.run

    def watched(self, *args, **options):
        source = self.view.source.source
        inner = source.read
        monkeypatch.setattr(
            source,
            "read",
            lambda a, b, atoms=None, out=None: (
                read.append(atoms),
                inner(a, b, atoms=atoms, out=out),
            )[1],
        )
        return run(self, *args, **options)

    monkeypatch.setattr(Conversion, "run", watched)
    made(tmp_path, pbc="whole")
    assert {len(atoms) for atoms in read if atoms is not None} <= {0, 3341 + 41 * 4}
    assert None not in [type(atoms) for atoms in read]


def test_atoms_in_place_of_a_selection(tmp_path):
    protein = mdio.Selection(center="protein")
    mdio.convert(XTC, tmp_path / "text.zarr", top=GRO, stop=2, selection=protein)
    few = mdio.Selection(center=mda.Universe(GRO).select_atoms("protein"))
    mdio.convert(XTC, tmp_path / "atoms.zarr", stop=2, selection=few)
    first, second = (mdio.open(tmp_path / name).read(0, 2) for name in ("text.zarr", "atoms.zarr"))
    assert first == second
    with pytest.raises(PlanError, match="--center: the mask or Universe has 5 atoms"):
        mdio.convert(XTC, tmp_path / "no.zarr", selection=mdio.Selection(center=[True] * 5))


def test_virtual_sites_go_with_their_molecule(tmp_path):
    """They have neither bonds nor mass."""
    found = made(tmp_path, select="resname SOL", pbc="mol")
    found = found.reshape(N_FRAMES, -1, 4, 3)
    assert np.linalg.norm(found[:, :, 3] - found[:, :, 0], axis=-1).max() < 0.2


def test_what_is_missing_is_named(wandering, tmp_path):
    out = tmp_path / "a.zarr"
    with pytest.raises(PlanError, match=r"needs bonds.*has none.*TPR"):
        mdio.convert(XTC, out, top=GRO, selection=mdio.Selection(pbc="mol"))
    with pytest.raises(PlanError, match=r"topology.*; name one with -s"):
        mdio.convert(wandering[0], out, selection=mdio.Selection(pbc="whole"))
    with pytest.raises(PlanError, match=r"topology.*; name one with -s"):
        mdio.convert(wandering[0], out, selection=mdio.Selection(center="protein"))
    with pytest.raises(PlanError, match=r"center.*selects no atoms"):
        mdio.convert(XTC, out, top=GRO, selection=mdio.Selection(center="name NONE"))
    with pytest.raises(PlanError, match=r"center: cannot select"):
        mdio.convert(XTC, out, top=GRO, selection=mdio.Selection(center="nonsense ("))
    with pytest.raises(PlanError, match="cluster brings the molecules of a selection together"):
        mdio.convert(XTC, out, top=TPR, selection=mdio.Selection(pbc="cluster"))
    u = mda.Universe.empty(3, trajectory=True)
    for first in (True, False):
        path = tmp_path / "boxless.trr"
        with mda.Writer(str(path), 3) as writer:
            for has_box in (not first, False, True):
                u.dimensions = [9, 9, 9, 90, 90, 90] if has_box else None
                writer.write(u.atoms)
        with pytest.raises(PlanError, match=f"frame {0 if first else 1} has no unit cell"):
            mdio.convert(path, out, selection=mdio.Selection(pbc="atom"))
    assert not out.exists()
    assert mdio.convert(path, out, start=2, selection=mdio.Selection(pbc="atom")).n_frames == 1


@pytest.mark.parametrize("length", [np.inf, np.nan, -9.0])
def test_cells_that_are_none(tmp_path, length):
    """As other programs may write them; an infinite one would make positions NaN."""
    path = tmp_path / "a.ncdf"
    u = mda.Universe.empty(3, trajectory=True)
    with mda.Writer(str(path), 3) as writer:
        for x in (9, length):
            u.dimensions = [x, 9, 9, 90, 90, 90]
            writer.write(u.atoms)
    with pytest.raises(PlanError, match="frame 1 has no unit cell"):
        mdio.convert(path, tmp_path / "a.zarr", selection=mdio.Selection(pbc="atom"))


def test_a_continuation_cannot_be_followed(wandering, tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(wandering[0], out, selection=mdio.Selection(pbc="nojump"), stop=30)
    with pytest.raises(PlanError, match="convert all files together"):
        mdio.append(wandering[0], out)
