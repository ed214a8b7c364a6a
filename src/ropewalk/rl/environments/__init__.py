"""Environments, stepped together, with one convention for the ends of episodes."""
