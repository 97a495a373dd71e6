"""Test classes for the contracts of layouts and writers, also those of other packages."""
