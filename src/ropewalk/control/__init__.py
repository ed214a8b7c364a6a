"""Looking at what runs, and asking it to stop, from other terminals of the same user.

`view.py` is what a pool, program, trainer, population, search or experiment shows of itself.
"""
