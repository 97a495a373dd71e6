"""A bar for frames done, in terminals and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self


class ProgressBar:
    """Shows how many frames are done, at which rate, and how long the rest takes.

    Parameters
    ----------
    total
        Frames in all; without it no time left is shown.
    label
        What is going on.
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
        from tqdm.auto import tqdm  # takes longer to import than all that is drawn with it

        self._bar = tqdm(total=total, desc=label, unit="frame", unit_scale=True, **options)
        self._nbytes = 0

    def __call__(self, n_frames: int, nbytes: int) -> None:
        """Take note of frames done since the last call, and the bytes they took."""
        self._nbytes += nbytes
        elapsed_s = self._bar.format_dict["elapsed"]
        if elapsed_s > 0:
            self._bar.set_postfix_str(f"{self._nbytes / elapsed_s / 1e6:.0f} MB/s", refresh=False)
        self._bar.update(n_frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
