"""Zarr outputs as xarray opens them."""

import pytest
import xarray as xr
from MDAnalysisTests.datafiles import XTC
from numpy.testing import assert_array_equal

import mdio


@pytest.mark.parametrize("precision", ["none", None])
def test_groups_open_lazily_with_their_dimensions(tmp_path, precision):
    out = tmp_path / "o.zarr"
    mdio.convert(XTC, out, precision=precision)
    expected = mdio.open(XTC).read(2, 5)
    found = xr.open_zarr(out, group="particles/trajectory/position", consolidated=False)
    assert dict(found.sizes) == {"frame": 10, "atom": 47681, "axis": 3}
    run = found.isel(frame=slice(2, 5))
    assert_array_equal(run["value"].values, expected.positions)
    assert_array_equal(run["time"].values, expected.time)
    assert_array_equal(run["step"].values, expected.step)
    edges = xr.open_zarr(out, group="particles/trajectory/box/edges", consolidated=False)
    assert dict(edges.sizes) == {"frame": 10, "vector": 3, "axis": 3}
