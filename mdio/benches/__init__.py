"""Benches that users run on their own machine and data: ``mdio bench``."""
