"""A decision as text, pictures and a page."""
