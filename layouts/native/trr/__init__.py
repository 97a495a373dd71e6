"""TRR of GROMACS."""
