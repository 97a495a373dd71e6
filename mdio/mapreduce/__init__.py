"""Map-reduce over trajectories: what happens across frames, key by key."""
