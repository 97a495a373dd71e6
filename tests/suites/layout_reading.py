"""Where `mdio.testing.reading` was."""

from mdio.testing.reading import (
    HYPOTHESIS,
    LayoutReadingTests,
    Oracle,
    ReadingCase,
    oracle_from_mdanalysis,
)

__all__ = ["HYPOTHESIS", "LayoutReadingTests", "Oracle", "ReadingCase", "oracle_from_mdanalysis"]
