"""Files of other programs, and formats that only MDAnalysis reads."""
