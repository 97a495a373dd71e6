"""Runs the functions of a script that are called ``check_...``, on all ranks of a communicator."""

from mdio.parallel.sleeping import allgather


def run_all(names, comm):
    """Run the checks among the names of a script, and tell that they have passed."""
    checks = [value for name, value in sorted(names.items()) if name.startswith("check_")]
    for check in checks:
        check()
        allgather(comm, None)  # as a barrier, but ranks sleep
    if comm.rank == 0:
        print(f"{len(checks)} checks passed on {comm.size} ranks")
