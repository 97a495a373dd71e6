"""How an output is striped: what to plan for, and what to ask before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mdio.core.files.publish import output_errors
from mdio.layouts.plan import DEFAULT_STRIPE_NBYTES, LayoutPlan
from mdio.layouts.registry import layout_class
from mdio.layouts.striping.file_systems import get_stripe, set_stripe, stripes
from mdio.layouts.striping.stripes import StripeRecord, record

__all__ = ["StripeRequest"]


@dataclass(frozen=True, slots=True)
class StripeRequest:
    """What a user asked of the file system for one output."""

    nbytes: int | None = None
    """Stripe size; None = what the target's folder has, else 1 MiB."""
    count: int | None = None
    """Servers, -1 = all; None = what the target's folder has."""
    progressive: Sequence[tuple[int, int]] = ()
    """(end in bytes, count) of the components before the last, which has `count`."""

    @property
    def _explicit(self) -> bool:
        return self.nbytes is not None or self.count is not None or bool(self.progressive)

    def nbytes_for(self, out: Path) -> int:
        """Return the stripe size to plan an output for."""
        if self.nbytes is not None:
            return self.nbytes
        folder = out.absolute().parent
        found = get_stripe(folder)
        return DEFAULT_STRIPE_NBYTES if found is None else found.stripe_nbytes

    def apply(self, temporary: Path, plan: LayoutPlan) -> StripeRecord | None:
        """Have the output made with its stripes: an empty file, or a folder for its files.

        Where nothing was asked, the folder's own default stays, which may be better than a size
        and a count can say (a progressive one); it is only taken note of.

        Returns StripeRecord or None: for the manifest; None where nothing was asked and files are
        not striped. Whatever the file system answers is in it, and does not stop the conversion.
        Raises OutputError: the folder cannot be made.
        """
        if not self._explicit and not stripes(temporary):
            return None
        if layout_class(plan.layout).is_folder:
            with output_errors(temporary):
                temporary.mkdir(exist_ok=True)
        if self._explicit:
            return set_stripe(
                temporary, plan.stripe_nbytes, plan.stripe_count, self.progressive or None
            )
        found = get_stripe(temporary.parent)
        return record(temporary, {}, found, None if found else "the file system does not tell")
