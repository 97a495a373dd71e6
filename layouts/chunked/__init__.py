"""Arrays in chunks, of HDF5 and Zarr, and outputs of mdio that consist of them: reading."""
