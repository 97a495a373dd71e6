"""Ways of making an output: decoded frames, copied bytes, parts, parallel HDF5."""
