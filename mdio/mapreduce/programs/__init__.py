"""Programs that ship with mdio, and examples of how to write one."""
