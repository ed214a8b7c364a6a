"""Machines that tests may cut off, slow down and switch off: namespaces of the kernel on one host."""

from tests.lab.lab import Lab
from tests.lab.machine import Machine
from tests.lab.plugin import require

__all__ = ["Lab", "Machine", "require"]
