"""H5MD files whose frames lie in other files, their parts."""
