"""What imitates the standard library: processes, executors and contexts with the names that programs know."""
