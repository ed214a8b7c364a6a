"""What processes of these tests have imported when they begin; each would take up to a second to do it itself."""

from __future__ import annotations

import contextlib
import importlib

for _name in ("numpy", "gymnasium", "gymnasium.envs.box2d", "matplotlib.figure"):
    with contextlib.suppress(ImportError):  # its tests are skipped
        importlib.import_module(_name)
