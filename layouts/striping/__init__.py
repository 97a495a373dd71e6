"""File systems that stripe files."""
