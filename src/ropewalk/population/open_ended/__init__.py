"""What POET is made of: environments that vary, niches in which agents learn, and their lineage."""
