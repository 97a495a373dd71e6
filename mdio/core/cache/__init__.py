"""A cache on a disk of the node: units of trajectories, checked when they are read."""
