"""How a method of an object in one process is called from another."""
