"""Trajectories as text: cut into frames here, each of which a library reads by itself."""
