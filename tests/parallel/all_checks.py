"""Runs the functions of a script that are called ``check_...``, on all ranks of a communicator."""


def run_all(names, comm):
    """Run the checks among the names of a script, and tell that they have passed."""
    checks = [value for name, value in sorted(names.items()) if name.startswith("check_")]
    for check in checks:
        check()
        comm.Barrier()
    if comm.rank == 0:
        print(f"{len(checks)} checks passed on {comm.size} ranks")
