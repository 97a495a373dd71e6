"""References: an array that others read out of a trajectory's files, without a copy."""
