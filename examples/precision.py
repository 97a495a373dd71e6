"""What rounding costs: bytes of a trajectory beside how far its atoms move."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from MDAnalysisTests.datafiles import DCD

import mdio

steps = [None, 0.001, 0.01, 0.1]  # angstrom; an XTC usually has 0.01
exact = mdio.open(DCD).read(0, 98).positions
names, sizes, moved = [], [], []
for step in steps:
    name = f"rounded-{step}.zarr"
    mdio.convert(DCD, name, precision=step, force=True)
    names.append("float32" if step is None else f"{step} Å")
    sizes.append(sum(p.stat().st_size for p in Path(name).rglob("*") if p.is_file()) / 2**20)
    moved.append(np.abs(mdio.open(name).read(0, 98).positions - exact).max())

figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
bars = ax.bar(names, sizes)
ax.bar_label(bars, [f"moved {far:.1g} Å" for far in moved])
ax.set(xlabel="--precision", ylabel="MiB")
ax.margins(y=0.15)
figure.savefig("precision.png", dpi=120)
