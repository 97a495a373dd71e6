"""What `bench/paper/himach.py pictures` draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

import mdio
from mdio.mapreduce.programs.permeation import IonPermeation
from mdio.mapreduce.programs.residence import survival_probability
from mdio.mapreduce.results import MapReduceResult


def residence_picture(result: MapReduceResult, path: Path) -> None:
    """Draw the survival probability, and how many waters have how long a stay."""
    dt = float(np.diff(result.time).mean())
    probability = survival_probability(result)
    fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    left.plot(dt * np.arange(len(probability)), probability, marker="o", ms=3)
    left.set(xlabel="time (ps)", ylabel="survival probability", ylim=(0, 1.02), xlim=(0, None))
    longest = np.sort(result.columns["longest_ps"] + dt)
    right.step(longest, len(longest) - np.arange(len(longest)), where="pre")
    right.set(xlabel="longest stay, at least (ps)", ylabel="waters", xscale="log", yscale="log")
    fig.savefig(path, dpi=110)
    plt.close(fig)


def permeation_picture(
    trajectory: Any, top: Any, program: IonPermeation, states: tuple[str, ...], path: Path
) -> None:
    """Draw paths of some that pass the slab, and how often each state follows each other one."""
    result = mdio.map_reduce(trajectory, top=top, map=program)
    columns = result.columns
    passed = columns["n_up"] + columns["n_down"]
    ways = mdio.map_reduce(trajectory, top=top, map=program, reduce=path_of)
    fig, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.3), layout="constrained")
    left.axhspan(-program.thickness / 2, program.thickness / 2, color="0.9")
    for row in np.argsort(-passed, kind="stable")[:4]:
        z = ways.columns["z"][row]
        left.plot(ways.time, z, lw=1, label=f"atom {result.keys[row]}")
    left.set(xlabel="time (ps)", ylabel="z (angstrom)", ylim=(-9, 9))
    left.legend(fontsize=7, ncols=2, loc="upper center")
    steps = columns["transitions"].sum(axis=0)
    right.imshow(
        np.where(steps, np.log10(np.maximum(steps, 1)) + 0.3, 0), cmap="Blues", vmin=0, vmax=4
    )
    for (row, column), n in np.ndenumerate(steps):
        if n:
            colour = "white" if n > steps.max() / 10 else "black"
            right.text(column, row, f"{n:,}", ha="center", va="center", fontsize=7, color=colour)
    names = [state.replace(" from ", "\nfrom ") for state in states]
    right.set_xticks(range(len(states)), names, fontsize=7, rotation=45)
    right.set_yticks(range(len(states)), names, fontsize=7)
    right.set(xlabel="to", ylabel="from")
    right.set_title(
        f"{int(columns['n_up'].sum())} up, {int(columns['n_down'].sum())} down", fontsize=9
    )
    fig.savefig(path, dpi=110)
    plt.close(fig)


def path_of(key: Any, frame: Any, time: Any, values: Any) -> dict[str, Any]:  # noqa: ARG001
    """Reduce to the whole path, which all atoms have for all frames."""
    return {"z": values["z"]}
