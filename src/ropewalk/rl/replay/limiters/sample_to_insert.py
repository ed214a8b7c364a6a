"""`SampleToInsertRatio`: keeps the number of samples per inserted item near a ratio, by letting either side wait."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.rl.replay.limiters.limiter import Limiter, RateLimiter


@dataclass(frozen=True, slots=True)
class SampleToInsertRatio(Limiter):
    """Let samplers wait where too few items came in, and inserters where too many did.

    Args:
        samples_per_insert: the ratio; positive.
        min_size: number of items at which sampling begins; at least 1.
        error_buffer: by how many samples the number owed may differ from `samples_per_insert * min_size`, or the least
            and the largest number of samples owed; None: a tenth of that product, and no less than the formula needs.
    """

    samples_per_insert: float
    min_size: int
    error_buffer: float | tuple[float, float] | None = None

    def formula(self) -> RateLimiter:
        """Return the formula with bounds around `samples_per_insert * min_size`."""
        middle = self.samples_per_insert * self.min_size
        match self.error_buffer:
            case (low, high):
                bounds = low, high
            case None:
                buffer = max(0.1 * middle, 1.0, self.samples_per_insert)
                bounds = middle - buffer, middle + buffer
            case _:
                bounds = middle - self.error_buffer, middle + self.error_buffer
        least = 2 * max(1.0, self.samples_per_insert)
        if not bounds[1] - bounds[0] >= least:
            raise ValueError(
                f"error_buffer={self.error_buffer} lets the samples owed be between {bounds[0]:g} and {bounds[1]:g}; "
                f"that is {bounds[1] - bounds[0]:g} wide and must be at least 2 * max(1, samples_per_insert) = "
                f"{least:g}, or each side would wait for the other at nearly every item; use an error_buffer of at "
                f"least {least / 2:g}"
            )
        return RateLimiter(self.samples_per_insert, self.min_size, *bounds)


__all__ = ["SampleToInsertRatio"]
