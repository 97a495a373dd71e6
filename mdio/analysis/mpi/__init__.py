"""The driver on the ranks of an MPI program, and reading through parallel HDF5."""
