"""Reading through a cache on a disk of the node (`mdio.core.cache`)."""
