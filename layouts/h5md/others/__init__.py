"""What other programs write, and want."""
