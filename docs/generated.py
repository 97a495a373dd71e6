"""What the site shows that the program itself knows: its commands, its names, pictures of a run."""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import mdio
from mdio.cli.main import COMMANDS, command_help

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

KINDS = {
    "Conversions": (
        "convert",
        "Storage",
        "Selection",
        "split",
        "append",
        "record",
        "verify",
        "repair",
    ),
    "Reading": ("open", "FrameBlock", "TrajectoryInfo", "sample"),
    "Analyses": ("analyze", "RMSD", "RMSF", "MSD", "VACF", "Dihedrals", "Pairs", "map_reduce"),
    "Kernels of your own": ("UserKernel", "Kernel", "Prepared"),
    "Executors": ("Serial", "Processes", "DaskExecutor", "MPIExecutor", "ProgressBar"),
    "MDAnalysis' own analyses": ("DaskBackend", "MPIBackend"),
    "Advice": ("advise",),
    "Errors": ("MdioError",),
}


def write_commands(path):
    """Write the help of all commands, as the program prints it."""
    os.environ["COLUMNS"] = "90"
    parts = ["# Commands", "What `--help-all` of each command prints."]
    for name in COMMANDS:
        parts += [f"## mdio {name}", f"```text\n{command_help(name).rstrip()}\n```"]
    path.write_text("\n\n".join(parts) + "\n")


def write_api(path):
    """Write a page that lists the public names under headings; their docstrings follow."""
    listed = {name for names in KINDS.values() for name in names}
    more = [name for name in mdio.__all__ if name not in listed and not name.startswith("__")]
    parts = [_heading("Python", "="), "All public names are in ``mdio``; units are in the names."]
    for heading, names in {**KINDS, "More": more}.items():
        known = [name for name in names if name in mdio.__all__]
        if known:
            parts.append(_heading(heading, "-"))
        for name in known:
            is_class = isinstance(getattr(mdio, name), type)
            kind, options = ("class", "\n   :members:") if is_class else ("function", "")
            parts.append(f".. auto{kind}:: mdio.{name}{options}")
    path.write_text("\n\n".join(parts) + "\n")


def _heading(text, line):
    return f"{text}\n{line * len(text)}"


def write_pictures(folder):
    """Draw what the pages show, from a run on adenylate kinase."""
    import matplotlib

    matplotlib.use("Agg")
    from MDAnalysisTests.datafiles import DCD, PSF

    folder.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = mdio.analyze(DCD, top=PSF, kernel="rmsd", select="protein and name CA")
    ax = result.plot()
    ax.set_ylabel("RMSD of C-alpha (angstrom)")
    ax.figure.set_size_inches(6, 3)
    ax.figure.savefig(folder / "rmsd.png", dpi=120, bbox_inches="tight")
    draw_house(folder / "house.png")


ROOMS = (
    *("core", "layouts", "parallel", "converters", "readers"),
    *("analysis", "mapreduce", "advisor", "cli"),
)
"""Of mdio, from the bottom to the top."""


def imports_of_rooms():
    """Return how many modules of one room import another, by both."""
    root = Path(mdio.__file__).resolve().parents[1]
    counts = Counter()
    for room in ROOMS:
        folder = root / room if (root / room).is_dir() else root / "mdio" / room
        for path in folder.rglob("*.py"):
            names = set()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mdio."):
                    names.add(node.module.split(".")[1])
            counts.update((room, name) for name in names & {*ROOMS} - {room})
    return counts


def draw_house(path):
    """Draw the rooms as floors, and an arc for each that imports another, as wide as often."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    for floor, room in enumerate(ROOMS):
        axes.text(0, floor, room, ha="center", va="center", bbox={"fc": "#DDE8F5", "ec": "#0072B2"})
    for (upper, lower), count in sorted(imports_of_rooms().items()):
        a, b = ROOMS.index(upper), ROOMS.index(lower)
        side = 1 if (a - b) % 2 else -1
        ends = ((0.16 * side, a), (0.16 * side, b))
        bend = -side * (0.25 + 0.04 * (a - b))
        axes.add_patch(
            FancyArrowPatch(
                *ends,
                connectionstyle=f"arc3,rad={bend}",
                arrowstyle="-|>",
                mutation_scale=9,
                linewidth=0.5 + count**0.5 / 3,
                color="#56789A",
                alpha=0.7,
            )
        )
    axes.set(xlim=(-1.6, 1.6), ylim=(-0.6, len(ROOMS) - 0.4))
    axes.axis("off")
    figure.savefig(path, dpi=150)


def run_examples(folder):
    """Run the examples of the gallery, and keep their pictures in a folder."""
    variables = os.environ | {"MPLBACKEND": "Agg"}
    for script in sorted(EXAMPLES.glob("*.py")):
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(
                [sys.executable, "-W", "ignore", script], cwd=place, env=variables, check=True
            )
            shutil.copy(Path(place, f"{script.stem}.png"), folder)
