"""A distributed program as a graph: nodes are services and workers, and passing a handle makes an edge."""
