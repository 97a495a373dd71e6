"""Adenylate kinase opens: the angles of its two lids, by a kernel of four lines."""

import matplotlib.pyplot as plt
import numpy as np
from MDAnalysisTests.datafiles import DCD, PSF

import mdio

CORE, HINGE, LID, NMP = (slice(a, b) for a, b in [(89, 100), (114, 125), (124, 153), (34, 55)])


def angles(block):
    """Return the angles of both lids, degrees: (frames, 2)."""
    core, hinge, lid, nmp = (
        block.positions[:, part].mean(axis=1) for part in (CORE, HINGE, LID, NMP)
    )
    a, b, c = nmp - core, lid - hinge, core - hinge
    cosines = [
        np.vecdot(p, q) / np.linalg.norm(p, axis=1) / np.linalg.norm(q, axis=1)
        for p, q in [(-c, a), (c, b)]
    ]
    return np.degrees(np.arccos(cosines)).T


result = mdio.analyze(DCD, top=PSF, kernel=angles, select="protein and name CA")
nmp, lid = result.values.T
figure, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
ax.plot(nmp, lid, color="0.8", zorder=0)
points = ax.scatter(nmp, lid, c=result.time, s=18)
ax.set(xlabel="NMP to core (degrees)", ylabel="LID to core (degrees)")
figure.colorbar(points, label="time (ps)")
figure.savefig("hinges.png", dpi=120)
