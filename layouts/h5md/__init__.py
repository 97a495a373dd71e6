"""H5MD files: HDF5 with the tree of groups of H5MD 1.1."""
