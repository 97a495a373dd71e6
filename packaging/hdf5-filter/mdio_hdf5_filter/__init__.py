"""Lets h5py read integers in H5MD files of mdio, once it is imported; mdio is not needed.

Other programs find the filter in the folder that `PLUGIN_PATH` names::

    HDF5_PLUGIN_PATH=$(python -c "import mdio_hdf5_filter as f; print(f.PLUGIN_PATH)") h5dump ...
"""

from pathlib import Path

from h5py import h5pl

PLUGIN_PATH = str(Path(__file__).parent)

h5pl.append(PLUGIN_PATH.encode())
