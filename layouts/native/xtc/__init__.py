"""XTC of GROMACS."""
