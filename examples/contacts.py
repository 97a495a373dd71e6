"""Which contacts of a lid break when, by a map-reduce over all frames."""

import matplotlib.pyplot as plt
import numpy as np
from MDAnalysisTests.datafiles import DCD, PSF

import mdio

LID = slice(121, 159)  # of the C-alpha atoms; the rest is what it may touch


def in_contact(block):
    """Give a pair of key and frame for each contact: keys, rows, no values."""
    others = np.delete(np.arange(block.n_atoms), np.arange(115, 165))
    lid, rest = block.positions[:, LID, None], block.positions[:, None, others]
    rows, one, other = np.nonzero(((lid - rest) ** 2).sum(axis=-1) < 8.0**2)
    return 1000 * (one + 122) + others[other] + 1, rows, {}


def life(_key, frame, _time, _values):
    """Make a row of all frames of a contact."""
    return {"first": frame[0], "last": frame[-1], "n_frames": len(frame)}


result = mdio.map_reduce(
    DCD, top=PSF, select="protein and name CA", map=in_contact, reduce=life, workers=2
)
table = result.to_dataframe().sort_values(["last", "n_frames"]).reset_index()
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.hlines(table.index, table["first"], table["last"], color="0.85")
ax.scatter(table["last"], table.index, c=table["n_frames"], s=12)
ax.set_yticks(table.index, [f"{key // 1000}\u2013{key % 1000}" for key in table["key"]])
ax.set(xlabel="frame", ylabel="contact (residues)")
figure.savefig("contacts.png", dpi=120)
