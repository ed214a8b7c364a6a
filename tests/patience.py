"""How long a test waits for what has to come."""

PATIENCE_S = 120.0
"""Long enough beside eight busy processes, and shorter than the time of a test: who waits in vain says for what."""

PROGRAM_S = 1800.0
"""How long a program has that computes for a minute or two on an idle host; shorter than the time of a test of soak."""
