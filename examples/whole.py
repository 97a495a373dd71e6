"""A protein in water that drifted across the walls of its box, as written and made whole.

The drift is made up: the frame is moved by half a box, and wrapped as simulations do.
"""

import matplotlib.pyplot as plt
import MDAnalysis as mda
from matplotlib.collections import LineCollection
from MDAnalysisTests.datafiles import TPR, XTC

import mdio

u = mda.Universe(TPR, XTC)
u.atoms.translate(u.trajectory.ts.triclinic_dimensions.sum(axis=0) / 2)
u.atoms.wrap()
u.atoms.write("drifted.xtc")
mdio.convert(
    "drifted.xtc", "whole.zarr", top=TPR, selection=mdio.Selection(pbc="whole", center="protein")
)
figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharex=True, sharey=True, layout="constrained")
pictures = (("drifted.xtc", "as written"), ("whole.zarr", "pbc='whole', center='protein'"))
for ax, (path, title) in zip(axes, pictures, strict=True):
    u = mda.Universe(TPR, path)
    protein, water = u.select_atoms("protein"), u.select_atoms("name OW")[::10].positions
    ax.scatter(water[:, 0], water[:, 2], s=1, color="#a8cbe6", linewidths=0)
    bonds = u.atoms.positions[protein.bonds.indices][:, :, [0, 2]]
    ax.add_collection(LineCollection(bonds, colors="#1f3b57", linewidths=0.4))
    ax.set(title=title, xlabel="x (Å)", aspect="equal")
axes[0].set_ylabel("z (Å)")
figure.savefig("whole.png", dpi=120)
