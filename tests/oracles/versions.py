"""Which versions of MDAnalysis do what tests compare with."""

import MDAnalysis as mda
import pytest

MDA_2_11 = tuple(map(int, mda.__version__.split(".")[:2])) >= (2, 11)
needs_mda_2_11 = pytest.mark.skipif(not MDA_2_11, reason="MDAnalysis does so since 2.11")
