"""Rate limiters of replay tables: how many samples may be taken for each item that is inserted."""

from __future__ import annotations

from ropewalk.rl.replay.limiters.limiter import Limiter, RateLimiter
from ropewalk.rl.replay.limiters.min_size import MinSize
from ropewalk.rl.replay.limiters.queue import QueueLimiter, StackLimiter
from ropewalk.rl.replay.limiters.sample_to_insert import SampleToInsertRatio

__all__ = ["Limiter", "MinSize", "QueueLimiter", "RateLimiter", "SampleToInsertRatio", "StackLimiter"]
