"""Data of the pictures of a population, as its view has them: plain lists and numbers. Pure."""
