"""Values and small tools that everything else stands on; imports nothing of mdio above it."""
