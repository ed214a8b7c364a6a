"""The data of a trainer's panels: one module for each, with its form."""
