"""Progress of work: a bar in terminals and notebooks, lines in logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

LOG_INTERVAL_S = 60.0
"""Between lines of a log, and before the first one: shorter work writes none."""


class ProgressBar:
    """Shows how many frames are done, at which rate, and how long the rest takes.

    Parameters
    ----------
    total
        Frames in all; without it no time left is shown.
    label
        What is being done.
    **options
        Of `tqdm`, which draws it.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD
    >>> with mdio.ProgressBar(98, "RMSD") as bar:
    ...     result = mdio.analyze(DCD, kernel=mdio.RMSD(), progress=bar)
    """

    def __init__(self, total: int | None = None, label: str = "", **options: Any) -> None:
        from tqdm.auto import tqdm  # slow to import

        self._bar = tqdm(total=total, desc=label, unit="frame", unit_scale=True, **options)
        self._nbytes = 0

    def __call__(self, n_frames: int, nbytes: int) -> None:
        """Add frames done since the last call, and the bytes read for them."""
        self._nbytes += nbytes
        elapsed_s = self._bar.format_dict["elapsed"]
        if elapsed_s > 0:
            self._bar.set_postfix_str(f"{self._nbytes / elapsed_s / 1e6:.0f} MB/s", refresh=False)
        self._bar.update(n_frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


class ProgressLog:
    """Writes a line each minute: frames done, time taken and left, rates.

    `total`: returns the number of all frames, 0 if unknown; called before a line is written.
    `label`: what the work is. `file`: to which lines are written.
    """

    def __init__(self, total: Callable[[], int], label: str, file: TextIO) -> None:
        self._total, self._label, self._file = total, label, file
        self._n_frames = self._nbytes = 0
        self._began_s = self._last_line_s = time.monotonic()

    def __call__(self, n_frames: int, nbytes: int) -> None:
        """Add frames done since the last call, and the bytes read for them."""
        self._n_frames += n_frames
        self._nbytes += nbytes
        now_s = time.monotonic()
        if now_s - self._last_line_s < LOG_INTERVAL_S or not self._n_frames:
            return
        self._last_line_s, elapsed_s = now_s, now_s - self._began_s
        from tqdm import tqdm  # takes 30 ms to import, for which short work should not wait

        line = tqdm.format_meter(
            self._n_frames,
            self._total() or None,
            elapsed_s,
            prefix=self._label,
            unit="frame",
            unit_scale=True,
            postfix=f"{self._nbytes / elapsed_s / 1e6:.0f} MB/s",
            bar_format="{desc}: {n_fmt} of {total_fmt} frames [{elapsed}<{remaining}, {rate_fmt}"
            "{postfix}]",
        )
        print(line, file=self._file, flush=True)
