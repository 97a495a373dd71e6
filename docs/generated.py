"""What the site shows that the program itself knows: its commands, its names, pictures of a run."""

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import mdio
from mdio.cli.main import COMMANDS, command_help

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

KINDS = {
    "Conversions": ("convert", "Storage", "Selection", "split", "append", "verify", "repair"),
    "Reading": ("open", "FrameBlock", "TrajectoryInfo"),
    "Analyses": ("analyze", "RMSD", "RMSF", "MSD", "VACF", "Dihedrals", "Pairs", "map_reduce"),
    "Executors": ("Serial", "Processes", "DaskExecutor", "MPIExecutor", "ProgressBar"),
    "MDAnalysis' own analyses": ("DaskBackend", "MPIBackend"),
    "Advice": ("advise",),
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


def run_examples(folder):
    """Run the examples of the gallery, and keep their pictures in a folder."""
    variables = os.environ | {"MPLBACKEND": "Agg"}
    for script in sorted(EXAMPLES.glob("*.py")):
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(
                [sys.executable, "-W", "ignore", script], cwd=place, env=variables, check=True
            )
            shutil.copy(Path(place, f"{script.stem}.png"), folder)
