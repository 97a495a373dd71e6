"""Test classes for the contracts of layouts and writers, also for those of other packages."""
