"""Pages of HTML that tell of an analysis."""
