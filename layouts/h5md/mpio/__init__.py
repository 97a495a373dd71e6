"""H5MD files written and read through parallel HDF5."""
