"""`ElasticWorker`: what the user's `train_fn` is given."""

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
        """Its name among all workers that there ever are, such as "workers.2#0"."""
        return self._member.name

    @property
    def rank(self) -> int:
        """Its position in the present epoch; it changes when others die or leave."""
        return self.joined_trainer.rank

    @property
    def size(self) -> int:
        """How many members the present epoch has."""
        return self.joined_trainer.size

    @property
    def epoch(self) -> int:
        """How often the members have changed."""
        return self.joined_trainer.epoch

    @property
    def joined_trainer(self) -> ElasticTrainer:
        """The trainer.

        Raises:
            RuntimeError: it was not made yet.
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
        """Join the others; waits until they are there, or until their step is done if training goes on already.

        Afterwards weights, buffers, optimizer and random numbers are those of all.

        Args:
            model: trained in place; the same one on every worker.
            optimizer: over the parameters of the model.
            carry: what else has `state_dict` and `load_state_dict` and is the same everywhere, such as a scheduler of
                learning rates; whoever joins gets its state.

        Raises:
            RuntimeError: it was called before.
        """
        if self._trainer is not None:
            raise RuntimeError("a worker has one trainer, and this one has it already")
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
        """The global batches, as indices, one for each step; the same on every worker, whenever it joined.

        A worker that joins begins with the batch of the next step, and one that has left gets no more. For training in
        several parts call it once for each part, in the same order everywhere.

        Args:
            num_samples: of the whole data set.
            batch_size: of a step, over all workers together.
            epochs: passes over the data.
            seed: of the order.
            shuffle: another order in each pass; otherwise as they lie.
            drop_last: leave out the last batch of a pass if it is not full.

        Raises:
            ValueError: a number is below 1.
        """
        trainer = self.joined_trainer
        length = num_batches(num_samples, batch_size, epochs=epochs, drop_last=drop_last)
        behind = min(max(trainer.num_steps - self._num_drawn, 0), length)
        made = batches(num_samples, batch_size, epochs=epochs, seed=seed, shuffle=shuffle, drop_last=drop_last)
        for position, batch in enumerate(made):
            if trainer.left:
                return
            self._num_drawn += 1
            if position >= behind:
                yield batch

    def leave(self) -> None:
        """Take part in the step that is being done, or in the next one, and then no more; `trainer.left` says when."""
        self._member.coordinator.leave(self.name)

    def close(self) -> None:
        """End the threads of its trainer; may be called twice."""
        if self._trainer is not None:
            self._trainer.close()

    def history(self) -> list[StepSpan]:
        """Which steps were done so far, and by whom."""
        return self._member.coordinator.history()
