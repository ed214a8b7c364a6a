"""Neural networks for policies and values, one idea per file."""
