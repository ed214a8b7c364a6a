"""A module that sets the thresholds of the garbage collector when it is imported, as some programs do."""

from __future__ import annotations

import gc

gc.set_threshold(5_000, 20, 20)
