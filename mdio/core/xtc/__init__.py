"""Frames of XTC files: found, decoded, encoded."""
