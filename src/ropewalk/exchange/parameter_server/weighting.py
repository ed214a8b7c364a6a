"""`Weighting`: the factor of a gradient before it is encoded. Pure.

    samples                     the server divides the sum by the sum of samples
    samples / total_samples     the sum is the mean already, and so is all state made of it: residuals, memories

State in the first unit belongs to one number of samples, because the server divides by that of a later step.
"""

from __future__ import annotations

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.parameter_server.outcomes import ServerSettings

SHARES = -1.0
"""The value of `last` where weights were fractions of the total."""


class Weighting:
    """The weights of one worker's gradients.

    Args:
        settings: settings of the servers.
        keeps_state: whether compressors keep state from step to step.

    Attributes:
        last: the samples of the last step, `SHARES` if these were divided by the total, None before the first.
    """

    def __init__(self, settings: ServerSettings, keeps_state: bool) -> None:
        self.last: float | None = None
        # A server that takes sums as they are does not divide, so either unit will do.
        self._matters = keeps_state and (settings.optimizer is None or settings.optimizer.reduction == "mean")
        self._synchronous = settings.synchronous

    def of(self, record: StepRecord) -> float:
        """Return the weight of this step's gradients.

        Args:
            record: the record of the step.

        Raises:
            ExchangeInvalid: the weight is in another unit than the state from earlier steps.
        """
        if not self._matters:
            return record.samples
        unit, total = self._unit(record), record.total_samples
        if total is not None and not total > 0:
            raise ExchangeInvalid(
                f"step {record.step} has total_samples={total}: some member must have samples; leave it out"
            )
        if self.last is not None and unit != self.last:
            raise ExchangeInvalid(
                f"step {record.step} has {_shown(unit)}, and the one before had {_shown(self.last)}; "
                "what the compressor keeps belongs to one number of samples. Give all batches the same size "
                "(drop_last=True), or say StepRecord(total_samples=...) in every step, or use AllGather"
            )
        return record.samples if total is None else record.samples / total

    def check(self, record: StepRecord, heard: float) -> None:
        """Check the sum of weights that a server has received.

        Args:
            record: the record of the step.
            heard: sum of the weights of all members.

        Raises:
            ExchangeInvalid: members disagree about the total.
        """
        if self._matters and self._synchronous and record.total_samples is not None and abs(heard - 1) > 1e-6:
            raise ExchangeInvalid(
                f"the samples of all members in step {record.step} are {heard:.6g} times total_samples="
                f"{record.total_samples}; give the same total on every member, the sum of all samples"
            )

    def settle(self, record: StepRecord) -> None:
        """Record the unit of a step that counts."""
        self.last = self._unit(record)

    @staticmethod
    def _unit(record: StepRecord) -> float:
        return record.samples if record.total_samples is None else SHARES


def _shown(unit: float) -> str:
    return "total_samples" if unit == SHARES else f"samples={unit:g} and no total_samples"
