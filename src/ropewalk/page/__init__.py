"""The page: what runs, and the runs of the store, in a browser."""
