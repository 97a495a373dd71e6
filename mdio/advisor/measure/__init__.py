"""Measuring: an analysis on a few frames of its source and of trial conversions."""
