"""One file for each revision, named after it."""
