"""Reading from stores and web servers."""
