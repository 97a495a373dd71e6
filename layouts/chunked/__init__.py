"""Arrays in chunks, as HDF5 and Zarr hold them: reading, and what mdio writes around them."""
