"""The command line: one short file a subcommand."""
