"""Formats of simulation programs: a room each, and what they share."""
