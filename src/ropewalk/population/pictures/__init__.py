"""Pictures of runs; each needs matplotlib."""
