"""Codecs of chunks: the compressors of Zarr trees, and mdio's own for rounded positions."""
