"""Executors and gathers: how blocks of work are spread over processes and ranks."""
