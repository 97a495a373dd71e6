"""Ways of making an output: decoded frames, copied bytes, references, parallel HDF5, structures."""
