"""Selectors: which items of a table are sampled, and which ones are removed when it is full."""

from __future__ import annotations

from ropewalk.rl.replay.selectors.heap import MaxHeap, MinHeap
from ropewalk.rl.replay.selectors.ordered import Fifo, Lifo
from ropewalk.rl.replay.selectors.prioritized import Prioritized
from ropewalk.rl.replay.selectors.selector import Selector, SelectorState
from ropewalk.rl.replay.selectors.uniform import Uniform, UniformSelector

__all__ = [
    "Fifo",
    "Lifo",
    "MaxHeap",
    "MinHeap",
    "Prioritized",
    "Selector",
    "SelectorState",
    "Uniform",
    "UniformSelector",
]
