"""The algorithms of populations, one file each."""
