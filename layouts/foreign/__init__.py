"""What other programs wrote, and what only MDAnalysis reads."""
