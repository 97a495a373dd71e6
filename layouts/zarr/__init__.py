"""Zarr trees (v3) of shards and chunks, with the tree of groups of H5MD 1.1."""
