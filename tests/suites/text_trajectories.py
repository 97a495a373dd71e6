"""Small text trajectories whose frames vary in what they hold, and the numbers in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

N_FRAMES, N_ATOMS = 4, 3


@dataclass
class Frame:
    """The numbers of a frame, in angstrom and ps; None where it lacks them."""

    number: int
    positions: np.ndarray
    velocities: np.ndarray | None
    box: np.ndarray | None
    step: int
    time: float | None = None


@dataclass
class Text:
    """A file: what stands before all frames, and the text of each."""

    suffix: str
    head: str
    pieces: list[str]
    frames: list[Frame]
    options: dict
    first_without_box: bytes
    """What the file is with one frame, which has no box."""

    @property
    def raw(self) -> bytes:
        return (self.head + "".join(self.pieces)).encode()

    @property
    def ends(self) -> list[int]:
        """Where frames end."""
        ends = len(self.head) + np.cumsum([len(piece) for piece in self.pieces])
        return [int(end) for end in ends]


def frames_of(*, with_box, with_velocities=()):
    """Return frames of numbers with three decimals; `with_...`: in which there are such."""
    rng = np.random.default_rng(5)
    for number in range(N_FRAMES):
        positions = rng.integers(-9000, 9000, (N_ATOMS, 3)) / 1000
        velocities = rng.integers(-900, 900, (N_ATOMS, 3)) / 1000
        box = np.array([20 + number, 21, 22, 90, 90, 90])
        yield Frame(
            number,
            positions,
            velocities if number in with_velocities else None,
            box if number in with_box else None,
            number,
        )


def xyz(frame):
    cell = 'Lattice="{} 0 0 0 {} 0 0 0 {}" Properties=species:S:1:pos:R:3'
    cell = "" if frame.box is None else cell.format(*frame.box[:3])
    rows = "".join("C {:.3f} {:.3f} {:.3f}\n".format(*row) for row in frame.positions)
    return f"{N_ATOMS}\n{cell}\n{rows}"


def gro(frame):
    frame.step, frame.time = 50 * frame.number, frame.number / 4
    rows = ""
    for atom, row in enumerate(frame.positions / 10):
        rows += f"    1SOL     OW{atom + 1:5d}" + "".join(f"{x:9.4f}" for x in row)
        if frame.velocities is not None:
            rows += "".join(f"{x:9.5f}" for x in frame.velocities[atom] / 10)
        rows += "\n"
    lengths = np.zeros(3) if frame.box is None else frame.box[:3] / 10
    box = "".join(f"{x:10.5f}" for x in lengths)
    return f"made here t= {frame.time:.5f} step= {frame.step}\n{N_ATOMS:5d}\n{rows}{box}\n"


def pdb_atoms(frame):
    cell = "CRYST1{:9.3f}{:9.3f}{:9.3f}{:7.2f}{:7.2f}{:7.2f} P 1           1\n"
    rows = "" if frame.box is None else cell.format(*frame.box)
    for atom, row in enumerate(frame.positions):
        at = "".join(f"{x:8.3f}" for x in row)
        rows += f"ATOM  {atom + 1:5d}  C   ALA A   1    {at}  1.00  0.00           C  \n"
    return rows


def pdb(frame):
    return f"MODEL {frame.number + 1:8d}\n{pdb_atoms(frame)}ENDMDL\n"


def pdb_by_end(frame):
    return f"{pdb_atoms(frame)}END\n"


def lammps(frame, kind=""):
    frame.step = frame.time = 10 * frame.number
    low = np.array([-1.5, 2, 0.25]) * (1 + frame.number)
    bounds = "".join(f"{a} {a + length}\n" for a, length in zip(low, frame.box[:3], strict=True))
    columns = [f"{axis}{kind}" for axis in "xyz"]
    values = frame.positions / frame.box[:3] if kind else frame.positions + low
    if frame.velocities is not None:
        columns += ["vx", "vy", "vz"]
        values = np.hstack([values, frame.velocities])
    rows = ""
    for atom in np.roll(np.arange(N_ATOMS), frame.number):
        rows += f"{atom + 1} 1 " + " ".join(f"{x:.9f}" for x in values[atom]) + "\n"
    return (
        f"ITEM: TIMESTEP\n{frame.step}\nITEM: NUMBER OF ATOMS\n{N_ATOMS}\n"
        f"ITEM: BOX BOUNDS pp pp pp\n{bounds}ITEM: ATOMS id type {' '.join(columns)}\n{rows}"
    )


def lammps_scaled(frame):
    return lammps(frame, "s")


def history(frame):
    frame.step, frame.time = 100 * (frame.number + 1), 0.05 * (frame.number + 1)
    key = 0 if frame.velocities is None else 1
    text = f"timestep {frame.step:9d} {N_ATOMS:9d} {key} {2 * (frame.box is not None)} 0.0005\n"
    if frame.box is not None:
        text += "".join("{:12.4f}{:12.4f}{:12.4f}\n".format(*v) for v in np.diag(frame.box[:3]))
    for atom in range(N_ATOMS):
        text += f"C       {atom + 1:10d}   12.000000    0.000000\n"
        text += "{:14.4f}{:14.4f}{:14.4f}\n".format(*frame.positions[atom])
        if key:
            text += "{:14.4f}{:14.4f}{:14.4f}\n".format(*frame.velocities[atom])
    return text


def trc(frame):
    frame.step, frame.time = 100 * frame.number, 0.2 * frame.number
    rows = "".join("{:15.9f}{:15.9f}{:15.9f}\n".format(*row) for row in frame.positions / 10)
    text = f"TIMESTEP\n{frame.step:15d}{frame.time:15.6f}\nEND\nPOSITIONRED\n{rows}END\n"
    if frame.box is not None:
        lengths = "{:15.9f}{:15.9f}{:15.9f}\n".format(*(frame.box[:3] / 10))
        text += (
            f"GENBOX\n    1\n{lengths}  90.0  90.0  90.0\n  0.0  0.0  0.0\n  0.0  0.0  0.0\nEND\n"
        )
    return text


def arc(frame):
    text = f"{N_ATOMS} made here\n"
    if frame.box is not None:
        text += "{:12.6f}{:12.6f}{:12.6f}{:12.6f}{:12.6f}{:12.6f}\n".format(*frame.box)
    for atom, row in enumerate(frame.positions):
        text += f"{atom + 1:6d}  C  " + "".join(f"{x:12.6f}" for x in row) + "     1\n"
    return text


def mdcrd(frame):
    numbers = [f"{x:8.3f}" for x in frame.positions.ravel()]
    lines = ["".join(numbers[at : at + 10]) for at in range(0, len(numbers), 10)]
    box = "" if frame.box is None else "".join(f"{x:8.3f}" for x in frame.box[:3]) + "\n"
    return "\n".join(lines) + "\n" + box


def mol2(frame):
    text = f"@<TRIPOS>MOLECULE\nSMALL\n {N_ATOMS} 1 0 0 0\nSMALL\nNO_CHARGES\n\n@<TRIPOS>ATOM\n"
    for atom, row in enumerate(frame.positions):
        text += f"{atom + 1:7d} C{atom + 1:<8d}" + "".join(f"{x:10.4f}" for x in row)
        text += " C.3     1  ALA1   0.0000\n"
    text += "@<TRIPOS>BOND\n     1    1    2 1\n"
    if frame.box is not None:
        cell = "{:.4f} {:.4f} {:.4f} {:.4f} {:.4f} {:.4f} 1 1\n".format(*frame.box)
        text += f"@<TRIPOS>CRYSIN\n{cell}"
    return text


SOME, ALL, NONE = (0, 1, 3), (0, 1, 2, 3), ()
KINDS: dict[str, tuple[str, str, Callable[[Frame], str], tuple, tuple, dict]] = {
    "XYZ": ("xyz", "", xyz, SOME, NONE, {}),
    "GRO": ("gro", "", gro, SOME, (1, 2), {}),
    "PDB": ("pdb", "", pdb, SOME, NONE, {}),
    "PDB by END": ("pdb", "", pdb_by_end, SOME, NONE, {}),
    "LAMMPS": ("lammpstrj", "", lammps, ALL, (1, 2), {}),
    "LAMMPS, scaled": ("dump", "", lammps_scaled, ALL, (0, 3), {}),
    "HISTORY": ("history", "made here\n  0  0  3\n", history, SOME, (0, 2), {}),
    "TRC": ("trc", "TITLE\nmade here\nEND\n", trc, SOME, NONE, {}),
    "ARC": ("arc", "", arc, SOME, NONE, {}),
    "MDCRD": ("mdcrd", "made here\n", mdcrd, NONE, NONE, {"n_atoms": N_ATOMS}),
    "MDCRD with box": ("mdcrd", "made here\n", mdcrd, ALL, NONE, {"n_atoms": N_ATOMS}),
    "MOL2": ("mol2", "", mol2, SOME, NONE, {}),
}
"""By name: suffix, head, what writes a frame, which frames have boxes, which velocities, options.

Of formats with a cell in some frames the last one has one: without it, it looks cut.
"""


def text_of(name: str) -> Text:
    """Return a trajectory of a kind."""
    suffix, head, piece, with_box, with_velocities, options = KINDS[name]
    frames = list(frames_of(with_box=with_box, with_velocities=with_velocities))
    has_bounds = name.startswith("LAMMPS")
    alone = b"" if has_bounds else (head + piece(replace(frames[0], box=None))).encode()
    return Text(suffix, head, [piece(frame) for frame in frames], frames, options, alone)
