"""Population methods at scale: evolution strategies, genetic algorithms, PBT, POET, quality-diversity."""
