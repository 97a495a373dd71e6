"""Writing of files: by position, whole or not at all, past the page cache."""
