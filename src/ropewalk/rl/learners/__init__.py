"""What trains weights."""
