"""Data of the pictures of populations."""
