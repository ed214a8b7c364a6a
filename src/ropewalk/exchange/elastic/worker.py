"""`ElasticWorker`: the argument of the user's `train_fn`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ropewalk.exchange.elastic.membership import StepSpan
from ropewalk.exchange.elastic.shares import batches, num_batches
from ropewalk.exchange.elastic.trainer import ElasticTrainer

if TYPE_CHECKING:
    from ropewalk.exchange.elastic.elastic_member import ElasticMember


class ElasticWorker:
    """One worker of an elastic training, as its code sees it."""

    def __init__(self, member: ElasticMember) -> None:
        self._member = member
        self._trainer: ElasticTrainer | None = None
        self._num_drawn = 0

    def __repr__(self) -> str:
        return f"<worker {self.name}>"

    @property
    def name(self) -> str:
        """The name of this worker, which no other worker ever has, such as "workers.2#0"."""
        return self._member.name

    @property
    def rank(self) -> int:
        """The rank of this worker in the current epoch; it changes when others die or leave."""
        return self.joined_trainer.rank

    @property
    def size(self) -> int:
        """The number of members in the current epoch."""
        return self.joined_trainer.size

    @property
    def epoch(self) -> int:
        """The number of times that the members have changed, or have left out a batch."""
        return self.joined_trainer.epoch

    @property
    def joined_trainer(self) -> ElasticTrainer:
        """The trainer.

        Raises:
            RuntimeError: `trainer` was not called yet.
        """
        if self._trainer is None:
            raise RuntimeError(
                "this worker has not joined yet; call worker.trainer(model, optimizer) before rank, size, epoch or "
                "batches are asked for"
            )
        return self._trainer

    def trainer(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, carry: Sequence[Any] = ()
    ) -> ElasticTrainer:
        """Join the others; wait until they are ready, or until their current step is done if training has begun.

        Afterwards weights, buffers, optimizer and random numbers are the same as on the other members.

        Args:
            model: trained in place; the same model on every worker.
            optimizer: optimizer of the parameters of the model.
            carry: further objects with `state_dict` and `load_state_dict` that are the same on every worker, such as a
                learning-rate scheduler; a joining worker gets their states as they are when the others begin the next
                step.

        Returns:
            The trainer.

        Raises:
            RuntimeError: it was called before.
        """
        if self._trainer is not None:
            raise RuntimeError("a worker has one trainer, and this worker already has one")
        self._trainer = ElasticTrainer(self._member, model, optimizer, carry=carry)
        return self._trainer

    def batches(
        self,
        num_samples: int,
        batch_size: int,
        *,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> Iterator[Tensor]:
        """Yield the global batches as one-dimensional tensors of indices, one per step; the same on every worker.

        A worker that joins later begins with the batch of the next step, also where the others have left batches out,
        and a worker that has left gets no more. For training in several parts call this once for each part, in the same
        order on every worker; a part that the loop leaves early, after the same step on every worker, is over.

        Args:
            num_samples: number of samples in the whole data set.
            batch_size: number of samples per step, over all workers together.
            epochs: number of passes over the data.
            seed: seed of the order.
            shuffle: whether to use another order in each pass; otherwise that of the data set.
            drop_last: omit the last batch of a pass if it is not full.

        Raises:
            ValueError: a number is below 1.
        """
        trainer = self.joined_trainer
        length = num_batches(num_samples, batch_size, epochs=epochs, drop_last=drop_last)
        behind = min(max(trainer.num_steps + trainer.num_left_out - self._num_drawn, 0), length)
        made = batches(num_samples, batch_size, epochs=epochs, seed=seed, shuffle=shuffle, drop_last=drop_last)
        num_left = length
        try:
            for position, batch in enumerate(made):
                if trainer.left:
                    return
                self._num_drawn += 1
                num_left -= 1
                if position >= behind:
                    before = trainer.num_steps
                    try:
                        yield batch
                    finally:
                        trainer.num_left_out += trainer.num_steps == before
        finally:  # the rest of a part that its caller ends early is left out, for a worker that joins in a later part
            self._num_drawn += num_left
            trainer.num_left_out += num_left

    def leave(self) -> None:
        """Take part in the current or the next step, and then leave; `trainer.left` says when this has happened."""
        self._member.coordinator.leave(self.name)

    def settle(self) -> None:
        """Give the last weights to workers that wait for the next step, which this worker does not do any more."""
        if self._trainer is not None and not self._trainer.left:
            self._trainer.settle()

    def close(self) -> None:
        """End the threads of the trainer; may be called twice."""
        if self._trainer is not None:
            self._trainer.close()

    def history(self) -> list[StepSpan]:
        """Return which steps were done so far, and by which members."""
        return self._member.coordinator.history()
