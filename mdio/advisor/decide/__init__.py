"""From measurements to a decision; pure, numbers in and values out."""
