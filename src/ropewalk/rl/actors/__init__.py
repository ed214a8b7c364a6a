"""What collects experience, and what evaluates policies."""
