"""What storing its frames costs a simulation of OpenMM: beside a reporter that drops them.

Simulations of water begin at the same state and take turns; CPU time is that of all threads. What
is done once, looking at the topology and closing the reporter, is not timed with the steps. The
same steps differ from run to run by a few percent; so what a frame costs is measured by itself,
too: frames are written without a simulation, all shards of them stored, and that is compared with
what the steps between two frames take.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import openmm
from measuring import append_jsonl, summary
from openmm import app, unit

import mdio
from mdio.reporters import OpenMMReporter


class Dropping:
    """Asks for the same frames, and drops them."""

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def describeNextReport(self, simulation: Any) -> dict[str, Any]:  # noqa: N802
        """Return what `OpenMMReporter` does."""
        steps = self.interval - simulation.currentStep % self.interval
        return {"steps": steps, "periodic": None, "include": ["positions"]}

    def report(self, _: Any, state: Any) -> None:
        """Take the positions."""
        state.getPositions(asNumpy=True)

    def close(self) -> None:
        """Nothing is open."""


def water(edge_nm: float) -> app.Simulation:
    """Return a simulation of a box of water on the platform CPU."""
    field = app.ForceField("amber14/tip3p.xml")
    made = app.Modeller(app.Topology(), [])
    made.addSolvent(field, boxSize=openmm.Vec3(edge_nm, edge_nm, edge_nm) * unit.nanometer)
    system = field.createSystem(
        made.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometer,
        constraints=app.HBonds,
    )
    integrator = openmm.LangevinMiddleIntegrator(
        300 * unit.kelvin, 1 / unit.picosecond, 0.002 * unit.picoseconds
    )
    platform = openmm.Platform.getPlatformByName("CPU")
    simulation = app.Simulation(made.topology, system, integrator, platform)
    simulation.context.setPositions(made.positions)
    simulation.minimizeEnergy(maxIterations=50)
    simulation.step(100)
    return simulation


def frame_cost_s(folder: Path, n_atoms: int, n_frames: int) -> float:
    """Return the CPU time of storing a frame, of several shards."""
    positions = np.random.default_rng(0).normal(20, 10, (8, n_atoms, 3))
    begun = time.process_time()
    with mdio.Writer(folder / "frames.zarr") as writer:
        for n in range(n_frames):
            writer.write_block((positions[n % 8] * 10.0), time=n)
    return (time.process_time() - begun) / n_frames


def main() -> int:
    """Measure, print, and append records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edge-nm", type=float, default=3.0, help="edge of the box of water")
    parser.add_argument("--interval", type=int, default=100, help="steps between frames")
    parser.add_argument("--steps", type=int, default=1000, help="steps of each simulation")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--frames", type=int, help="that are stored alone (default: 192 MiB)")
    parser.add_argument("-o", type=Path, default=Path("bench-output/reporters.jsonl"))
    args = parser.parse_args()
    simulation = water(args.edge_nm)
    n_atoms = simulation.system.getNumParticles()
    begin = simulation.context.getState(positions=True, velocities=True)
    folder = Path(tempfile.mkdtemp(dir="."))
    makers = {
        "dropped": lambda: Dropping(args.interval),
        "mdio": lambda: OpenMMReporter(folder / "a.zarr", args.interval, force=True),
        "dcd": lambda: app.DCDReporter(str(folder / "a.dcd"), args.interval),
    }
    wall_s: dict[str, list[float]] = {name: [] for name in makers}
    cpu_s: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(args.repeats):
        for name, maker in makers.items():
            simulation.context.setState(begin)
            simulation.currentStep = 0
            reporter = maker()
            reporter.describeNextReport(simulation)
            simulation.reporters = [reporter]
            begun = time.perf_counter(), time.process_time()
            simulation.step(args.steps)
            wall_s[name].append(time.perf_counter() - begun[0])
            cpu_s[name].append(time.process_time() - begun[1])
            simulation.reporters.pop()
            getattr(reporter, "close", lambda: None)()
    interval_s = statistics.median(cpu_s["dropped"]) * args.interval / args.steps
    n_frames = args.frames or max(64, (192 << 20) // (12 * n_atoms))
    cost_s = frame_cost_s(folder, n_atoms, n_frames)
    shutil.rmtree(folder)
    rows = [
        {"reporter": name, "wall_s": summary(wall_s[name]), "cpu_s": summary(cpu_s[name])}
        for name in makers
    ]
    for row in rows:
        walls, cpus = row["wall_s"], row["cpu_s"]
        print(f"{row['reporter']:8} {walls['median']:7.2f} s   {cpus['median']:7.2f} s of CPU")
    share = cost_s / interval_s
    print(
        f"{n_atoms} atoms: a frame costs {1e3 * cost_s:.2f} ms of CPU, the {args.interval} steps "
        f"before it {1e3 * interval_s:.0f} ms: {100 * share:.2f}%"
    )
    facts = {"n_atoms": n_atoms, "interval": args.interval, "steps": args.steps}
    append_jsonl(args.o, [{**facts, "frame_cpu_s": cost_s, "share": share, **row} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
