"""HiMach's side of the fifth paper: water residence, two workers, a large shuffle, 512 workers.

``python bench/paper/himach.py residence|workers|shuffle|forecast|pictures --top TOP --traj XTC``:

residence
    One core beside `waterdynamics.SurvivalProbability`, in turn, the same frames; the numbers are
    compared first.
workers
    One and two processes, in turn, jobs of `--seconds` on one: as many frames as that takes, made
    of the trajectory over and over. Beside them, two processes that each do half on their own,
    without mdio sharing anything: what the machine allows. CPU times tell what two cores of their
    own would: the parent's, while workers wait, and half of the workers'.
shuffle
    100 million pairs of 16 bytes by two processes that may not have more than 512 MB of data each
    (RLIMIT_DATA); the most that each had resident is shown.
forecast
    Times of one core measured here, carried to 512 workers by the advisor's model.
pictures
    Draws both programs' results.

Records go to bench-output/himach.jsonl.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from multiprocessing import Process
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import append_jsonl, in_turn

import mdio
from mdio.mapreduce.programs.permeation import STATES, IonPermeation
from mdio.mapreduce.programs.residence import WaterResidence, survival_probability

OUT = Path("bench-output")
MB = 1 << 20
TAU_MAX = 20
LOOK = 8
"""So many copies of the trajectory tell how long a job takes."""


def loaded() -> float:
    """Return the load of the machine, for the record."""
    return float(Path("/proc/loadavg").read_text().split()[0])


def note(what: str, **figures: Any) -> None:
    """Print figures and append them to the records."""
    print(
        f"{what}: "
        + ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()
        )
    )
    append_jsonl(OUT / "himach.jsonl", [{"bench": what, "load": loaded(), **figures}])


def universe(args: argparse.Namespace) -> Any:
    """Return a Universe, which both sides are given, so that none reads the topology."""
    import MDAnalysis as mda

    return mda.Universe(args.top, args.traj)


def residence(args: argparse.Namespace) -> None:
    """Compare with waterdynamics on one core."""
    from waterdynamics import SurvivalProbability

    u = universe(args)
    n_frames = len(u.trajectory)
    tau_max = min(TAU_MAX, n_frames - 1)
    program = WaterResidence(args.water, "protein", 3.5, tau_max)
    found: dict[str, Any] = {}
    cpu: dict[str, list[float]] = {"mdio": [], "waterdynamics": []}

    def ours() -> None:
        begun = time.process_time()
        found["mdio"] = survival_probability(mdio.map_reduce(args.traj, top=u, map=program))
        cpu["mdio"].append(time.process_time() - begun)

    def theirs() -> None:
        begun = time.process_time()
        run = SurvivalProbability(u, f"{args.water} and around 3.5 protein")
        run.run(tau_max=tau_max)
        found["waterdynamics"] = np.array(run.sp_timeseries, float)
        cpu["waterdynamics"].append(time.process_time() - begun)

    seconds = in_turn({"mdio": ours, "waterdynamics": theirs}, args.repeats)
    wall = {name: statistics.median(values) for name, values in seconds.items()}
    own = {name: statistics.median(values) for name, values in cpu.items()}
    note(
        "residence",
        n_frames=n_frames,
        n_atoms=len(u.atoms),
        mdio_s=wall["mdio"],
        waterdynamics_s=wall["waterdynamics"],
        mdio_cpu_s=own["mdio"],
        waterdynamics_cpu_s=own["waterdynamics"],
        gain=wall["waterdynamics"] / wall["mdio"],
        gain_cpu=own["waterdynamics"] / own["mdio"],
        largest_difference=float(np.abs(found["mdio"] - found["waterdynamics"]).max()),
    )


def longer(args: argparse.Namespace, folder: Path, copies: int) -> Path:
    """Return an XTC of the trajectory's frames over and over: frames stand for themselves."""
    path = folder / "long.xtc"
    with path.open("wb") as file:
        for _ in range(copies):
            with Path(args.traj).open("rb") as source:
                shutil.copyfileobj(source, file)
    return path


def of_children() -> float:
    """Return the CPU seconds of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def workers(args: argparse.Namespace) -> None:
    """Compare two workers with one."""
    u = universe(args)
    program = WaterResidence(args.water, "protein", args.radius, TAU_MAX)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        path = longer(args, Path(name), LOOK)
        with mdio.open(path) as layout:
            _ = layout.info
        begun = time.process_time()
        mdio.map_reduce(path, top=u, map=program)
        copies = max(1, round(LOOK * args.seconds / (time.process_time() - begun)))
        path = longer(args, Path(name), copies)
        with mdio.open(path) as layout:
            n_frames = layout.info.n_frames  # and its frames are found, once
        results, cpu = {}, {}

        def run(n_workers: int) -> None:
            before, own = of_children(), time.process_time()
            results[n_workers] = mdio.map_reduce(
                path, top=u, map=program, workers=n_workers, local_dir=name
            )
            cpu[n_workers] = time.process_time() - own, of_children() - before

        def half(first: int) -> None:
            end = first + n_frames // 2
            mdio.map_reduce(path, top=u, map=program, frames=slice(first, end), local_dir=name)

        def apart() -> None:
            both = [Process(target=half, args=(first,)) for first in (0, n_frames // 2)]
            for one in both:
                one.start()
            for one in both:
                one.join()

        cases = {"one": lambda: run(1), "two": lambda: run(2), "apart": apart}
        seconds = in_turn(cases, args.repeats)
    same = all(
        np.array_equal(results[1].columns[name], column)
        for name, column in results[2].columns.items()
    )
    one, two, alone = (statistics.median(values) for values in seconds.values())
    (own, work), (own_of_two, work_of_two) = cpu[1], cpu[2]
    note(
        "workers",
        n_frames=n_frames,
        n_pairs=int(results[1].n_pairs.sum()),
        one_s=one,
        two_s=two,
        gain=one / two,
        machine_allows=one / alone,
        parent_cpu_of_one_s=own,
        workers_cpu_of_one_s=work,
        parent_cpu_of_two_s=own_of_two,
        workers_cpu_of_two_s=work_of_two,
        cpu_allows=(own + work) / (own_of_two + work_of_two / 2),
        same=same,
    )


class Draws:
    """As many random keys a frame as asked for, the same for a frame whoever maps it."""

    def __init__(self, n_a_frame: int, n_keys: int) -> None:
        self.n_a_frame, self.n_keys = n_a_frame, n_keys

    def map(self, block: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Return pairs of an int64 and a float64."""
        draws = (np.random.default_rng(round(frame)) for frame in block.time.tolist())
        every = np.concatenate([d.integers(0, self.n_keys, self.n_a_frame) for d in draws])
        rows = np.repeat(np.arange(block.n_frames), self.n_a_frame)
        return every, rows, {"value": every + 0.5}

    def reduce(self, key: Any, frame: Any, time: Any, values: Any) -> dict[str, Any]:  # noqa: ARG002
        """Count, sum, and look at this process."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ordered = bool(np.all(np.diff(frame) >= 0))
        return {"n": len(frame), "sum": values["value"].sum(), "rss": most, "ordered": ordered}


def shuffle(args: argparse.Namespace) -> None:
    """MapReduceOptions 100 million pairs in little memory."""
    n_frames = 1000
    n_a_frame = args.pairs // n_frames
    limit = args.limit * MB
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        path = Path(name) / "times.dcd"
        small_trajectory(path, n_frames)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        program = Draws(n_a_frame, args.keys)
        found = mdio.map_reduce(
            path,
            map=program.map,
            workers=2,
            memory=limit // 2,
            local_dir=name,
            blocks_per_worker=20,
        )
    columns = found.columns
    assert columns["n"].sum() == n_frames * n_a_frame
    assert columns["ordered"].all()
    assert np.array_equal(columns["sum"], columns["n"] * (found.keys + 0.5))
    note(
        "shuffle",
        n_pairs=int(columns["n"].sum()),
        nbytes_a_pair=16,
        n_keys=len(found.keys),
        limit_mb=args.limit,
        worker_rss_mb=float(columns["rss"].max()) / 1024,
        parent_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        seconds=found.seconds,
        shuffle_and_reduce_s=found.reduce_s,
        on_disk_gb=found.nbytes_on_disk / 1e9,
    )


def small_trajectory(path: Path, n_frames: int) -> None:
    """Write frames of three atoms, 1 ps apart."""
    import MDAnalysis as mda

    u = mda.Universe.empty(3, trajectory=True)
    with mda.Writer(str(path), 3, dt=1.0) as writer:
        for _ in range(n_frames):
            writer.write(u.atoms)


def forecast(args: argparse.Namespace) -> None:
    """Carry this machine's times to 512 workers on the paper's data: 2.5 million frames."""
    from paper.himach_forecast import forecast_of

    program = WaterResidence(args.water, "protein", 3.5, TAU_MAX)
    for figures in forecast_of(args.traj, universe(args), program, args.repeats):
        note("forecast", **figures)


def pictures(args: argparse.Namespace) -> None:
    """Draw survival and stays of water, and the paths and transitions of what crosses a slab."""
    from paper.himach_pictures import permeation_picture, residence_picture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u = universe(args)
    OUT.mkdir(exist_ok=True)
    result = mdio.map_reduce(args.traj, top=u, map=WaterResidence(args.water))
    residence_picture(result, OUT / "residence.png")
    program = IonPermeation(ions=args.water, thickness=6.0)
    permeation_picture(args.traj, u, program, STATES, OUT / "permeation.png")
    print(f"{OUT}/residence.png, {OUT}/permeation.png")


def main() -> None:
    """Parse and run."""
    benches = {one.__name__: one for one in (residence, workers, shuffle, forecast, pictures)}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench", choices=benches)
    parser.add_argument("--top", help="topology of a protein in water")
    parser.add_argument("--traj", help="its XTC")
    parser.add_argument("--water", default="name OW", help="one atom a molecule")
    parser.add_argument("--radius", type=float, default=3.5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--pairs", type=int, default=100_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--limit", type=int, default=512, help="MB of data of a process")
    parser.add_argument("--folder", help="for large files")
    args = parser.parse_args()
    benches[args.bench](args)


if __name__ == "__main__":
    main()
