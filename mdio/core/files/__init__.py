"""Reading and writing of files: every byte goes through here."""
