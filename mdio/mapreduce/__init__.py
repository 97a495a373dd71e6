"""Map-reduce over trajectories: computations across frames, by key."""
