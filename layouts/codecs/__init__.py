"""Encodings of chunks that are not of the libraries."""
