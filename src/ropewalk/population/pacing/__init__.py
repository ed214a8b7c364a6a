"""Pacings decide when to ask, when to tell, and which evaluations to give up; one file for each. Pure."""
