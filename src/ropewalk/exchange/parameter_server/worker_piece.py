"""`WorkerPiece`: one piece at a worker: its outgoing gradient, the answer that comes back, and its state.

There are two phases, as in all encoders: `encode` and `deliver` prepare, `commit` and `abort` settle. With sparse
answers the worker has replicas of the server's decoder, and of its weights, and computes the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ropewalk.exchange.compressors.compressor import Round
from ropewalk.exchange.compressors.memoryless import state_dtype
from ropewalk.exchange.message import Message
from ropewalk.exchange.parameter_server.outcomes import PieceStanding, PullAnswer, ServerSettings
from ropewalk.exchange.parameter_server.pieces import ModelPiece, bytes_of, state_of_piece, tensor_of


class WorkerPiece:
    """One piece at one worker.

    Attributes:
        flat: this worker's gradient, one-dimensional.
        left: number of parts that are not ready yet in this step.
        result: the answer that came back: the mean gradient, or the weights of a server that owns them; flat.
        weights: the server's weights at the beginning of the step, flat; None where it owns none.
    """

    def __init__(self, piece: ModelPiece, settings: ServerSettings) -> None:
        layout = piece.layout
        self.piece = piece
        self.flat = torch.zeros(layout.numel, dtype=layout.dtype, device=layout.device)
        self.left = len(piece.parts)
        self.result: Tensor | None = None
        self.weights: Tensor | None = None
        self.encoder = settings.compressor.encoder(layout)
        self._settings = settings
        self._decoder = settings.compressor.decoder(layout) if settings.sparse_answers else None
        self._velocity: Tensor | None = None
        self._applied: Tensor | None = None
        self._total: Tensor | None = None
        self._next_velocity: Tensor | None = None
        self._samples = 1.0

    # Steps

    def begin(self) -> None:
        """Begin a step: no gradient is ready."""
        self.left = len(self.piece.parts)
        self.result = None

    def encode(self, step: int, rank: int, size: int, samples: float, scale: float) -> Message:
        """Encode the gradient for the server."""
        if samples != scale:
            self.flat.mul_(samples / scale)
        round_ = Round(step, rank, size, samples=samples, applied=self._applied)
        return self.encoder.encode(self.flat, round_)

    def deliver(self, answer: PullAnswer) -> None:
        """Decode the server's answer.

        Raises:
            MessageCorrupt: the answer cannot be decoded.
        """
        layout, optimizer = self.piece.layout, self._settings.optimizer
        if self._decoder is None:
            heard = tensor_of(answer.data, layout.dtype).to(layout.device)
        else:
            heard = torch.empty_like(self.flat)
            self._decoder.decode({0: memoryview(answer.data)}, heard)
        self._samples = answer.samples
        self._total = None if optimizer and self._decoder is None else heard
        if optimizer is None:
            self.result = heard / answer.samples if answer.samples > 0 else torch.zeros_like(heard)
        elif self._decoder is None:
            self.result = heard
        else:
            assert self.weights is not None
            self.result, self._next_velocity = optimizer.step(self.weights, self._velocity, heard, answer.samples)

    def commit(self) -> None:
        """Take over the prepared state, because the step has succeeded."""
        self.encoder.commit()
        optimizer, result = self._settings.optimizer, self.result
        assert result is not None
        if self._decoder is not None:
            self._decoder.commit()
        if optimizer is None:
            self._applied = self._total
        else:
            assert self.weights is not None
            moved = result - self.weights
            # The paper's form of GD-SEC compares with the last change of the weights; all others with the applied
            # update.
            in_weights = getattr(self._settings.compressor, "xi", None) is not None
            self._applied = moved if in_weights else optimizer.applied(moved, self._samples)
            self.weights, self._velocity = result, self._next_velocity
        self._total = None

    def abort(self) -> None:
        """Drop the prepared state, because the step is taken back."""
        self.encoder.abort()
        if self._decoder is not None:
            self._decoder.abort()
        self.result = self._total = None

    # State

    @property
    def memory(self) -> bytes | None:
        """This worker's memory, for a server that adds up those of all workers; None for zero."""
        memory = self.encoder.memory
        return None if memory is None or not memory.any() else bytes(bytes_of(memory))

    def take_over(self, standing: PieceStanding) -> None:
        """Begin with the server's state."""
        layout = self.piece.layout

        def there(data: bytes, dtype: torch.dtype = layout.dtype) -> Tensor:
            return tensor_of(data, dtype).to(layout.device)

        if standing.weights is not None:
            self.weights = there(standing.weights)
        if self._decoder is not None:
            self._velocity = None if standing.velocity is None else there(standing.velocity)
            if standing.memory is not None:
                self._decoder.remember(there(standing.memory, state_dtype(layout)))

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return the encoder's state and the last applied update, by the names of the layout."""
        state: dict[str, Any] = {f"encoder.{kind}": named for kind, named in self.encoder.state_dict().items()}
        if self._applied is not None:
            state["applied"] = self.piece.layout.by_name(self._applied)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load this piece's part of a state by whole parameters; what it lacks begins anew."""
        mine = state_of_piece(self.piece, state)
        self.encoder = self._settings.compressor.encoder(self.piece.layout)
        self._applied = None
        self.encoder.load_state_dict(
            {kind.removeprefix("encoder."): named for kind, named in mine.items() if kind.startswith("encoder.")}
        )
        if mine.get("applied"):
            self._applied = torch.zeros_like(self.flat)
            self.piece.layout.fill(self._applied, mine["applied"])

    @property
    def samples(self) -> float:
        """The sum of all members' samples in the last round that was received."""
        return self._samples
