"""Archives of what was found: elites by their niche, behaviours by their novelty."""
