"""What a trajectory holds, read by something that is not mdio."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Oracle:
    """All frames of a trajectory, read by something that is not mdio."""

    positions: Floats
    box: Floats
    time: NDArray[np.float64]
    step: NDArray[np.int64]
    velocities: Floats | None = None
    forces: Floats | None = None
    dt_ps: float | None = None
    """Where known."""

    @property
    def n_frames(self) -> int:
        """Number of frames."""
        return len(self.positions)

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return int(self.positions.shape[1])


def oracle_from_mdanalysis(top: Any, traj: Any, **kwargs: Any) -> Oracle:
    """Read all frames with MDAnalysis' reader; without a topology where `top` is None."""
    import MDAnalysis as mda
    from MDAnalysis.coordinates.core import get_reader_for

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if top is None:
            reader = get_reader_for(str(traj), format=kwargs.get("format"))(str(traj), **kwargs)
        else:
            reader = mda.Universe(str(top), str(traj), **kwargs).trajectory
        rows = [_row(ts) for ts in reader]
        dt_ps = float(reader.dt)
        reader.close()
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    arrays: dict[str, Any] = {
        "positions": np.array(columns["positions"], np.float32),
        "box": np.array(columns["box"], np.float32),
        "time": np.array(columns["time"], np.float64),
        "step": np.array(columns["step"], np.int64),
    }
    missing = np.full(arrays["positions"].shape[1:], np.nan, np.float32)
    for name in ("velocities", "forces"):
        if any(array is not None for array in columns[name]):
            arrays[name] = np.array([missing if a is None else a for a in columns[name]])
    return Oracle(**arrays, dt_ps=dt_ps)


def _row(ts: Any) -> dict[str, Any]:
    return {
        "positions": ts.positions.copy(),
        "velocities": ts.velocities.copy() if ts.has_velocities else None,
        "forces": ts.forces.copy() if ts.has_forces else None,
        "box": np.zeros(6, np.float32) if ts.dimensions is None else ts.dimensions.copy(),
        "time": ts.time,
        "step": ts.data.get("step", ts.frame),
    }
