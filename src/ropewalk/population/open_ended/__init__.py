"""The parts of POET: environments that vary, niches in which agents learn, and their lineage."""
