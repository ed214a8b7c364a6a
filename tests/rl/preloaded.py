"""What processes of these tests have imported when they begin: torch alone takes 2 s of CPU time.

Not torch's compiler, which optimizers of torch itself import, but not ours: to import it takes 1 s, and to fork a
process that has it 10 ms more.
"""

from __future__ import annotations

import gymnasium as gymnasium
import pytest as pytest
import torch as torch

from ropewalk import rl

for _name in dir(rl):
    getattr(rl, _name)
