"""Drop-in counterparts of the standard library: processes, executors and contexts under the same names."""
