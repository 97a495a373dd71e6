"""AMBER NetCDF."""
