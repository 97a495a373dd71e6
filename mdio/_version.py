"""The version, in its own file so that setup.cfg can read it without importing mdio."""

__version__ = "0.1.0"
