"""Segments: a folder of files of a native format, and a manifest."""
