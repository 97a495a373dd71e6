"""Test classes for the contracts of layouts and writers, also for those of other packages."""

from mdio.testing.reading import LayoutReadingTests, Oracle, ReadingCase, oracle_from_mdanalysis
from mdio.testing.writing import LayoutWriterTests, WritingCase

__all__ = [
    "LayoutReadingTests",
    "LayoutWriterTests",
    "Oracle",
    "ReadingCase",
    "WritingCase",
    "oracle_from_mdanalysis",
]
