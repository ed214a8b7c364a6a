"""What processes of these tests have imported when they begin: torch alone takes 2 s of CPU time, an optimizer 1 s."""

from __future__ import annotations

import pytest as pytest
import torch

from ropewalk.exchange.elastic import elastic_member as elastic_member
from ropewalk.exchange.parameter_server import service as service

#: With the first of a process, torch imports its compiler.
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
