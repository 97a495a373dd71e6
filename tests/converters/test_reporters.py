"""Simulations of OpenMM, stored as they run, beside OpenMM's own reporters and states."""

import MDAnalysis as mda
import numpy as np
import openmm
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from openmm import app, unit

import mdio
from mdio.core.errors import OutputError, PlanError
from mdio.reporters import OpenMMReporter

INTERVAL = 5


@pytest.fixture(scope="module")
def water():
    """A small box of water: topology, system, positions."""
    field = app.ForceField("amber14/tip3p.xml")
    made = app.Modeller(app.Topology(), [])
    made.addSolvent(field, boxSize=openmm.Vec3(1.5, 1.6, 1.7) * unit.nanometer)
    cutoff = 0.7 * unit.nanometer
    system = field.createSystem(
        made.topology, nonbondedMethod=app.CutoffPeriodic, nonbondedCutoff=cutoff
    )
    return made.topology, system, made.positions


@pytest.fixture
def simulation(water):
    """It begins the same each time, on a platform that gives the same each time."""

    def begin():
        topology, system, positions = water
        integrator = openmm.VerletIntegrator(0.0005 * unit.picoseconds)
        platform = openmm.Platform.getPlatformByName("Reference")
        made = app.Simulation(topology, system, integrator, platform)
        made.context.setPositions(positions)
        made.context.setVelocitiesToTemperature(300, 1)
        return made

    return begin


def test_the_same_as_openmm_writes(simulation, water, tmp_path):
    one, states = simulation(), []
    reporter = OpenMMReporter(tmp_path / "a.zarr", INTERVAL, velocities=True, forces=True)
    one.reporters += [reporter, app.DCDReporter(str(tmp_path / "a.dcd"), INTERVAL)]
    for _ in range(4):
        one.step(INTERVAL)
        states.append(one.context.getState(velocities=True, forces=True))
    reporter.close()
    del one.reporters[:]
    ours = mda.Universe(str(tmp_path / "a.zarr"))
    theirs = mda.Universe(water[0], str(tmp_path / "a.dcd"), topology_format="OPENMMTOPOLOGY")
    for n, (mine, other) in enumerate(zip(ours.trajectory, theirs.trajectory, strict=True)):
        assert_array_equal(mine.positions, other.positions)
        assert_allclose(mine.dimensions, other.dimensions, rtol=1e-6)
        per = unit.kilojoule_per_mole / unit.angstrom
        velocities = (
            states[n].getVelocities(asNumpy=True).value_in_unit(unit.angstrom / unit.picosecond)
        )
        forces = states[n].getForces(asNumpy=True).value_in_unit(per)
        assert_allclose(mine.velocities, velocities, rtol=1e-6)
        assert_allclose(mine.forces, forces, rtol=1e-6)
        assert mine.time == pytest.approx(0.0005 * INTERVAL * (n + 1))
        assert mine.data["step"] == INTERVAL * (n + 1)
    assert ours.atoms.names.tolist() == theirs.atoms.names.tolist()
    assert len(ours.bonds) == len(theirs.bonds)


@pytest.mark.parametrize("target", ["zarr", "h5md"])
def test_a_restarted_simulation_goes_on(simulation, tmp_path, target):
    out, whole = tmp_path / f"a.{target}", tmp_path / f"whole.{target}"
    one = simulation()
    one.reporters.append(OpenMMReporter(whole, INTERVAL))
    one.step(8 * INTERVAL)
    one.reporters.pop().close()

    one = simulation()
    one.reporters.append(OpenMMReporter(out, INTERVAL))
    one.step(4 * INTERVAL + 2)
    one.saveCheckpoint(str(tmp_path / "checkpoint"))
    one.step(2 * INTERVAL)  # which are lost
    one.reporters.pop().close()
    assert mdio.open(out).info.n_frames == 6

    one = simulation()
    one.loadCheckpoint(str(tmp_path / "checkpoint"))
    one.reporters.append(OpenMMReporter(out, INTERVAL))
    with pytest.warns(UserWarning, match="last 2 frames"):
        one.step(4 * INTERVAL - 2)
    one.reporters.pop().close()
    ours, theirs = (mdio.open(path).read(0, 8) for path in (out, whole))
    for name in ("positions", "box", "time", "step"):
        assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_some_atoms(simulation, tmp_path):
    one = simulation()
    chosen = {"a": "name O", "b": [5, 3, 4]}
    reporters = [
        OpenMMReporter(tmp_path / f"{name}.zarr", INTERVAL, atoms=atoms)
        for name, atoms in chosen.items()
    ]
    one.reporters += reporters
    one.step(INTERVAL)
    for reporter in reporters:
        reporter.close()
    state = one.context.getState(positions=True, enforcePeriodicBox=True)
    positions = state.getPositions(asNumpy=True)._value
    a, b = (mda.Universe(str(tmp_path / f"{name}.zarr")).atoms for name in chosen)
    assert_array_equal(a.positions, (10 * positions[::3]).astype("f4"))
    assert_array_equal(b.positions, (10 * positions[[5, 3, 4]]).astype("f4"))
    assert set(a.names) == {"O"} and b.names.tolist() == ["H2", "O", "H1"]


def test_what_does_not_fit(simulation, tmp_path):
    for interval in (0, 2.5, "10"):
        with pytest.raises(PlanError, match=rf"a\.zarr: a frame every {interval} steps"):
            OpenMMReporter(tmp_path / "a.zarr", interval)
    for atoms in ("name XX", "nam O"):
        one = simulation()
        one.reporters.append(OpenMMReporter(tmp_path / "a.zarr", 1, atoms=atoms))
        with pytest.raises(PlanError, match="select"):
            one.step(1)
    one = simulation()
    one.reporters.append(OpenMMReporter(tmp_path / "a.zarr", 1, append=False))
    one.step(2)
    one.reporters.pop().close()
    with pytest.raises(OutputError, match=r"a\.zarr: exists already"):
        OpenMMReporter(tmp_path / "a.zarr", 1, append=False)
    for interval in (1, 2):  # from the beginning again
        one = simulation()
        one.reporters.append(OpenMMReporter(tmp_path / "a.zarr", interval))
        with pytest.raises(OutputError, match=r"a\.zarr: has frames up to 0\.001 ps"):
            one.step(2)
    assert np.isfinite(mdio.open(tmp_path / "a.zarr").read(0, 2).positions).all()
    one = simulation()  # the next stage: its steps begin anew, its times do not
    one.context.setTime(0.001)
    one.reporters.append(OpenMMReporter(tmp_path / "a.zarr", 1))
    one.step(1)
    one.reporters.pop().close()
    assert mdio.open(tmp_path / "a.zarr").info.n_frames == 3


def test_without_a_box(tmp_path):
    system = openmm.System()
    for _ in range(3):
        system.addParticle(12.0)
    topology = app.Topology()
    residue = topology.addResidue("X", topology.addChain())
    for n in range(3):
        topology.addAtom(f"C{n}", app.Element.getBySymbol("C"), residue)
    platform = openmm.Platform.getPlatformByName("Reference")
    one = app.Simulation(topology, system, openmm.VerletIntegrator(0.001), platform)
    one.context.setPositions(np.eye(3))
    one.reporters.append(OpenMMReporter(tmp_path / "a.zarr", 1))
    one.step(3)
    one.reporters.pop().close()
    block = mdio.open(tmp_path / "a.zarr").read(0, 3)
    assert not block.box.any()
    assert_array_equal(block.positions[2], 10 * np.eye(3, dtype="f4"))
