"""What the atoms of a system are, as plain arrays, and simple selections among them."""
