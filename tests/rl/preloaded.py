"""What processes of these tests have imported when they begin: torch alone takes 2 s of CPU time, an optimizer 1 s."""

from __future__ import annotations

import gymnasium as gymnasium
import pytest as pytest
import torch

from ropewalk import rl

#: With the first of a process, torch imports its compiler.
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])

for _name in dir(rl):
    getattr(rl, _name)
