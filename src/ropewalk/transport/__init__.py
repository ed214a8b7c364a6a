"""How bytes travel between processes."""
