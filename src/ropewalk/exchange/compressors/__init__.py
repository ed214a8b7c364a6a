"""The family of compressors; each member is one file."""
