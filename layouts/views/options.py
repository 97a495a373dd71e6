"""Options of reading trajectories, and of joining several files."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from mdio.core.errors import PlanError
from mdio.core.options import option
from mdio.layouts.views import OVERLAPS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from mdio.core.cache import Cache

TOROIDAL = "toroidal"
FOLLOWS_ATOMS = ("nojump", TOROIDAL)
"""Values of `PBC` that follow atoms from the first frame on."""
PBC = ("whole", "mol", "cluster", "atom", *FOLLOWS_ATOMS)
ROT_TRANS, TRANSLATION = "rot+trans", "translation"
FITS = (ROT_TRANS, TRANSLATION)
OLD_PBC_NAMES = {"wrap": "atom", "unwrap": "whole"}
"""Former names of two values of `PBC`; still accepted, and in older outputs."""
NEED_BONDS_EXAMPLES = ("whole", "mol")
"""Those of `NEED_BONDS` that messages name."""
NEED_BONDS = (*NEED_BONDS_EXAMPLES, "cluster", "unwrap")
"""Values of `PBC`, old ones too, that make molecules whole and need bonds."""


@dataclass(frozen=True, kw_only=True)
class FrameOptions:
    """Options that choose and transform frames."""

    start: int | None = option(
        "first frame (0 is the first)", "--start N", kind="int", by_name=True, append=True
    )
    stop: int | None = option(
        "frame to stop before", "--stop N", kind="int", by_name=True, append=True, follow=False
    )
    step: int | None = option(
        "every Nth frame, counted from --start or -b", "--step N", by_name=True, append=True
    )
    begin_ps: float | None = option("first time, ps", "-b --begin PS", follow=False)
    end_ps: float | None = option("last time, ps", "-e --end PS", follow=False)
    dt_ps: float | None = option("keep one frame every PS ps", "--dt PS", follow=False)
    pbc: str | None = option(
        "whole: molecules that the box cuts are made whole (needs bonds); mol: and put into the "
        "box by their centres; cluster: the molecules of --center (or of --select) are put next to "
        "each other, the others around them; atom: each atom into the box; nojump: atoms that "
        "leave the box are not put back; toroidal: likewise, for diffusion where the box changes",
        f"--pbc {'|'.join(PBC)}",
        kind="pbc",
        choices=(*PBC, *OLD_PBC_NAMES),
    )
    center: str | ArrayLike | None = option(
        "move these atoms to the middle of the box, then the others around them as --pbc says "
        "(whole is then mol)",
        "--center SEL",
    )

    fit: str | None = option(
        "superpose each frame on a reference, after --pbc and --center: translated and rotated, or "
        "only translated; velocities and forces are rotated, too",
        f"--fit {'|'.join(FITS)}",
        choices=FITS,
    )
    fit_select: str | ArrayLike | None = option(
        "atoms that are superposed on those of the reference, with equal weights (default: those "
        "of --select)",
        "--fit-select SEL",
    )
    fit_reference: int | str | PathLike[str] | None = option(
        "number of a frame (default: 0), or a file whose first frame has the same atoms, those of "
        "--select or --fit-select, or others among which --fit-select finds as many",
        "--fit-reference FILE|FRAME",
        kind="reference",
    )

    def transformation(self, selection: Any) -> dict[str, Any] | None:
        """Return the options of `TransformedLayout`; None if frames stay as they are.

        `selection`: the chosen atoms, which are fitted unless `fit_select` names others.
        """
        periodic = {"pbc": self.pbc, "center": self.center}
        reference = self.fit_reference
        if self.fit is not None:
            if isinstance(reference, str | PathLike):
                from mdio.core.files.store import to_path

                reference = str(to_path(reference).absolute())
            elif reference is not None:
                reference = int(reference)
            fit_atoms = selection if self.fit_select is None else self.fit_select
            return {
                **periodic,
                "fit": self.fit,
                "fit_select": fit_atoms,
                "fit_reference": reference,
            }
        for name, value in (("fit-select", self.fit_select), ("fit-reference", reference)):
            if value is not None:
                raise PlanError(f"--{name} goes with --fit; give --fit rot+trans, or leave it out")
        return None if self.pbc is None and self.center is None else periodic

    @property
    def frames(self) -> dict[str, Any]:
        """The arguments of `mdio.layouts.views.view.select_frames`."""
        names = ("start", "stop", "step", "begin_ps", "end_ps", "dt_ps")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How the source is read."""

    overlap: str | None = option(
        "frames whose times several files have: keep those of the last file (default), of the "
        "first, refuse them, or keep all, with files in the order given",
        "--overlap",
        choices=OVERLAPS,
        append=True,
    )
    verify: bool = option(
        "trust the disk: do not compare what is read with its checksums",
        "--no-verify",
        True,
        append=True,
    )


@dataclass(frozen=True, kw_only=True)
class CachedReadOptions(ReadOptions):
    """Options of reading the source, and of caching it on the node."""

    cache: Cache | str | PathLike[str] | None = option(
        "keep what is read in this folder, on a local disk of each node, and read it from there "
        "next time",
        "--cache DIR",
    )
    cache_size: int | None = option(
        "limit of the cache, such as 200G (default: a tenth of the disk stays free, or 8 GiB)",
        "--cache-size SIZE",
        kind="nbytes",
    )

    @property
    def opened_cache(self) -> Cache | None:
        if self.cache is None and self.cache_size is None:
            return None
        from mdio.core.cache import Cache

        return Cache.from_option(self.cache, self.cache_size)
