"""Short simulations whose frames lie close together: inputs of `bench/codecs.py`.

Needs OpenMM (``pip install openmm``) in the environment that runs it; mdio is not used. What is
simulated comes with OpenMM: its box of a small protein in water (``protein``, 8,867 atoms), a
bilayer of POPC in water (``membrane``, 32,512 atoms), a box of water (``water``), or of 1 M sodium
chloride in SPC/E water (``brine``). ``peptide`` comes with MDAnalysisTests: a helix of 13 residues
in TIP4P-Ew, of whose four points one has no mass::

    python bench/simulated.py protein protein.xtc --every 0.1 --frames 640

Every fifth frame then is 0.5 ps from the next. TIP3P where nothing else is said, AMBER's force
fields, PME, bonds with hydrogen and waters rigid, 300 K, constant volume; steps of 2 fs, or longer
ones with heavy hydrogens (``--step-ps 0.004``). Energy is minimised before, and the first
picoseconds are left out.
"""

import argparse
from pathlib import Path

import openmm
from openmm import app, unit

LONGEST_PS = 0.002
"""Of a step with hydrogens of their own mass."""
FORCES = {
    "protein": ("amber99sb.xml", "tip3p.xml"),
    "membrane": ("amber14/lipid17.xml", "amber14/tip3p.xml"),
    "water": ("tip3p.xml",),
    "brine": ("amber14/spce.xml",),
    "peptide": ("amber14/protein.ff14SB.xml", "amber14/tip4pew.xml"),
}
FILES = {"protein": "test.pdb", "membrane": "POPC.pdb"}


def model_of(system: str, forces: app.ForceField, edge_nm: float) -> app.Modeller:
    """Return what is simulated."""
    if system == "peptide":
        from MDAnalysisTests.datafiles import PDB_helix

        found = app.PDBFile(str(PDB_helix))
        model = app.Modeller(found.topology, found.positions)
        model.addSolvent(forces, model="tip4pew", padding=0.6 * unit.nanometer)
        return model
    if system not in FILES:
        model = app.Modeller(app.Topology(), [] * unit.nanometer)
        box = openmm.Vec3(edge_nm, edge_nm, edge_nm) * unit.nanometer
        molar = (1.0 if system == "brine" else 0.0) * unit.molar
        kind = "spce" if system == "brine" else "tip3p"
        model.addSolvent(forces, model=kind, boxSize=box, ionicStrength=molar)
        return model
    found = app.PDBFile(str(Path(app.__file__).parent / "data" / FILES[system]))
    return app.Modeller(found.topology, found.positions)


def main() -> None:
    """Simulate, and write an XTC."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("system", choices=sorted(FORCES))
    parser.add_argument("out")
    parser.add_argument("--every", type=float, default=0.1, help="ps between frames")
    parser.add_argument("--frames", type=int, default=128)
    parser.add_argument("--before", type=float, default=5.0, help="ps that are left out")
    parser.add_argument("--edge", type=float, default=3.2, help="nm, of a box of water")
    parser.add_argument("--step-ps", type=float, default=LONGEST_PS, help="of the simulation")
    parser.add_argument("--threads", default="1")
    args = parser.parse_args()
    forces = app.ForceField(*FORCES[args.system])
    model = model_of(args.system, forces, args.edge)
    system = forces.createSystem(
        model.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometer,
        constraints=app.HBonds,
        hydrogenMass=4 * unit.amu if args.step_ps > LONGEST_PS else None,
    )
    ps = unit.picosecond
    integrator = openmm.LangevinMiddleIntegrator(300 * unit.kelvin, 1 / ps, args.step_ps * ps)
    integrator.setRandomNumberSeed(1)
    platform = openmm.Platform.getPlatformByName("CPU")
    run = app.Simulation(model.topology, system, integrator, platform, {"Threads": args.threads})
    run.context.setPositions(model.positions)
    run.minimizeEnergy(maxIterations=200)
    run.context.setVelocitiesToTemperature(300 * unit.kelvin, 1)
    run.step(round(args.before / args.step_ps))
    interval = round(args.every / args.step_ps)
    run.reporters.append(app.XTCReporter(args.out, interval, enforcePeriodicBox=False))
    run.step(interval * args.frames)
    print(f"{args.out}: {args.frames} frames of {model.topology.getNumAtoms()} atoms")


if __name__ == "__main__":
    main()
