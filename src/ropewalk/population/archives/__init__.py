"""Archives: elites by their niche, behaviours by their novelty."""
