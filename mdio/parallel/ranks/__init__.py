"""What ranks of an MPI program do together: agree, exchange rows, share items, end as one."""
