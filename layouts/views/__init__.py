"""Layouts over layouts: some of the frames and atoms, several files as one."""
