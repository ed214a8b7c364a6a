"""When to ask, when to tell, and what to wait for no longer: one file for each way. Pure."""
