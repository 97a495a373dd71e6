"""Journals of what is done of outputs, and what is left of those that were not finished."""
