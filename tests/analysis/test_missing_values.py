"""Values that are not numbers are told of wherever a result is shown."""

import json

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis.msd import EinsteinMSD

import mdio
from mdio.cli.main import main
from mdio.core.errors import PlanError


@pytest.fixture
def some(tmp_path):
    """A TRR of four frames, of which the second and fourth have velocities alone."""
    path = tmp_path / "some.trr"
    universe = mda.Universe.empty(5, trajectory=True, velocities=True)
    rng = np.random.default_rng(1)
    with mda.Writer(str(path), 5) as writer:
        for number in range(4):
            ts = universe.trajectory.ts
            ts.time, ts.has_positions = float(number), number % 2 == 0
            ts.dimensions = [30, 30, 30, 90, 90, 90]
            if ts.has_positions:
                ts.positions = rng.random((5, 3), dtype=np.float32) * 20
            ts.velocities = rng.random((5, 3), dtype=np.float32)
            writer.write(universe)
    return path


def test_the_frames_are_named(some, capsys):
    assert main(["analyze", "rmsd", str(some)]) == 0
    out, err = capsys.readouterr()
    assert "2 of 4 values are not numbers (NaN), in 2 frames: 1, 3" in err
    assert "without 2 of 4" in out
    assert main(["analyze", "rmsd", str(some), "--json"]) == 0
    assert any("in 2 frames: 1, 3" in note for note in json.loads(capsys.readouterr()[0])["notes"])
    result = mdio.analyze(some, kernel="rmsd", workers=2)
    assert sum("NaN" in note for note in result.notes) == 1
    assert "without 2 of 4" in result._repr_html_()


def test_superposed_fluctuations_and_references_of_such_frames(some):
    result = mdio.analyze(some, kernel=mdio.RMSF(superpose=True))
    assert np.isnan(result.values).all()
    with pytest.raises(PlanError, match="the reference, frame 1, has positions that are not"):
        mdio.analyze(some, kernel=mdio.RMSD(reference=1))


def test_no_note_without_them(some):
    result = mdio.analyze(some, kernel="rmsd", step=2)
    assert not any("NaN" in note for note in result.notes)


def test_displacements_over_frames_that_lack_positions_are_not_zero(some):
    result = mdio.analyze(some, kernel="msd")
    assert np.isnan(result.values).all()
    assert any("4 of 4 values are not numbers" in note for note in result.notes)
    assert any("mdio analyze rgyr of these atoms names it" in note for note in result.notes)


def test_displacements_are_those_of_mdanalysis(tmp_path):
    rng = np.random.default_rng(2)
    frames = rng.normal(size=(6, 4, 3)).cumsum(axis=0).astype(np.float32)
    universe = mda.Universe.empty(4, trajectory=True)
    universe.load_new(frames)
    with mda.Writer(str(tmp_path / "a.dcd"), 4, dt=1) as writer:
        for _ in universe.trajectory:
            writer.write(universe)
    values = mdio.analyze(tmp_path / "a.dcd", kernel="msd").values
    expected = EinsteinMSD(universe, fft=False).run().results.timeseries
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert values[0] == 0


def test_the_former_name_of_a_kernel(some, capsys):
    with pytest.warns(DeprecationWarning, match="called 'reference-distances' now"):
        former = mdio.analyze(some, kernel="distances", step=2)
    now = mdio.analyze(some, kernel="reference-distances", step=2)
    np.testing.assert_array_equal(former.values, now.values)
    assert main(["analyze", "distances", str(some), "--ref-frame", "2"]) == 0
    assert "called reference-distances now" in capsys.readouterr()[1]
