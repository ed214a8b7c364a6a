"""The version of the package; both ends of a link compare it."""

VERSION = "0.1.0"
"""Major, minor and patch, as in Semantic Versioning."""
