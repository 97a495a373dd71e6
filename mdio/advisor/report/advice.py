"""What `mdio.advise` gives back: a decision that prints, shows itself in notebooks, and reports."""

from __future__ import annotations

from dataclasses import dataclass, fields
from os import PathLike

from mdio.advisor.decide.decision import Decision
from mdio.advisor.report.page import html_of, save_page
from mdio.advisor.report.text import lines

__all__ = ["Advice"]


@dataclass(frozen=True)
class Advice(Decision):
    """A decision that can be read: as text, in a notebook, as a page."""

    @classmethod
    def of(cls, decision: Decision) -> Advice:
        """Return a decision as advice."""
        return cls(**{field.name: getattr(decision, field.name) for field in fields(decision)})

    def save_report(self, path: str | PathLike[str]) -> None:
        """Write an HTML page with plots and tables that needs nothing else.

        Raises
        ------
        MissingExtraError
            There is no matplotlib.
        OutputError
            The file cannot be written.
        """
        save_page(self, path)

    def _repr_html_(self) -> str:
        """Show the tables in a notebook, and the pictures where matplotlib is there."""
        return html_of(self)

    def __str__(self) -> str:
        return "\n".join(lines(self))
