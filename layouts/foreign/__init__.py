"""Files of other programs, and formats that are read through MDAnalysis."""
