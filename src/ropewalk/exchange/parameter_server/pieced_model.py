"""`PiecedModel`: a worker's parameters and gradients, as the pieces that travel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ropewalk.exchange.buckets import BucketEntry
from ropewalk.exchange.parameter_server.outcomes import ServerSettings
from ropewalk.exchange.parameter_server.pieces import Part, bytes_of, cut_pieces, merged_state
from ropewalk.exchange.parameter_server.worker_piece import WorkerPiece


class PiecedModel:
    """Maps parameters to pieces and pieces to parameters.

    Args:
        named_parameters: names and parameters, in the order of the model.
        num_shards: number of shards of the server.
        piece_bytes: size in bytes, see `cut_pieces`.
        settings: settings of the server.

    Attributes:
        pieces: the pieces by key.
        keys: for each shard, the keys of its pieces.
        places: for each parameter its parts: the key of the piece, the components, and their place in the piece.
        gradients: the gradients that are ready in this step, by name.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        num_shards: int,
        piece_bytes: int,
        settings: ServerSettings,
    ) -> None:
        named = list(named_parameters)
        cut = cut_pieces([BucketEntry.of(*one) for one in named], num_shards, piece_bytes)
        self.pieces = {piece.key: WorkerPiece(piece, settings) for piece in cut}
        self.keys = [[piece.key for piece in cut if piece.shard == shard] for shard in range(num_shards)]
        self.places: dict[str, list[tuple[int, Part, slice]]] = {}
        for piece in cut:
            for part, place in zip(piece.parts, piece.layout.slices.values(), strict=True):
                self.places.setdefault(part.name, []).append((piece.key, part, place))
        self.gradients: dict[str, Tensor] = {}
        self._filled: set[str] = set()
        self._parameters = dict(named)

    def on_hosts(self, shard: int) -> dict[int, Any]:
        """Return the layouts of the pieces of a shard, in CPU memory."""
        return {key: self.pieces[key].piece.on_host for key in self.keys[shard]}

    def begin(self) -> None:
        """Begin a step: no gradient is ready."""
        self.gradients.clear()
        self._filled.clear()
        for piece in self.pieces.values():
            piece.begin()

    def not_ready(self) -> list[str]:
        """Return the parameters that were neither ready nor filled with zeros in this step."""
        return [name for name in self.places if name not in self._filled]

    def fill(self, name: str, gradient: Tensor | None) -> list[int]:
        """Copy a gradient, or zeros, into its pieces; return the keys of the pieces that this completes."""
        flat = None if gradient is None else gradient.detach().reshape(-1)
        complete: list[int] = []
        self._filled.add(name)
        for key, part, place in self.places[name]:
            piece = self.pieces[key]
            piece.flat[place] = 0.0 if flat is None else flat[part.start : part.stop]
            piece.left -= 1
            if not piece.left:
                complete.append(key)
        return complete

    def write_mean(self, key: int, scale: float) -> None:
        """Replace the ready gradients in a piece by the mean that came back, times `scale`."""
        piece = self.pieces[key]
        mean = piece.result
        assert mean is not None
        for part, place in self._parts(piece):
            gradient = self.gradients.get(part.name)
            if gradient is not None:
                _write(gradient, part, mean[place] if scale == 1 else mean[place] * scale)

    def write_weights(self) -> None:
        """Replace the parameters by the server's weights."""
        for piece in self.pieces.values():
            assert piece.weights is not None
            for part, place in self._parts(piece):
                _write(self._parameters[part.name], part, piece.weights[place])

    def weights_of(self, shard: int) -> dict[int, bytes]:
        """Return the current parameters as bytes, by key of the pieces of a shard."""
        found: dict[int, bytes] = {}
        for key in self.keys[shard]:
            parts = self.pieces[key].piece.parts
            flats = [self._parameters[part.name].detach().reshape(-1)[part.start : part.stop] for part in parts]
            found[key] = bytes(bytes_of(torch.cat(flats)))
        return found

    def memories_of(self, shard: int) -> dict[int, bytes]:
        """Return the encoders' memories that are not zero, by key of the pieces of a shard."""
        found = {key: self.pieces[key].memory for key in self.keys[shard]}
        return {key: memory for key, memory in found.items() if memory is not None}

    def errors_of(self, shard: int) -> dict[int, bytes]:
        """Return the encoders' residuals that are not zero, by key of the pieces of a shard."""
        found = {key: self.pieces[key].encoder.error for key in self.keys[shard]}
        return {key: bytes(bytes_of(error)) for key, error in found.items() if error is not None and error.any()}

    def errors(self) -> dict[str, Tensor]:
        """Return the encoders' residuals by parameter, in the parameter's shape."""
        found = [
            (piece.piece, {"": piece.piece.layout.by_name(error)})
            for piece in self.pieces.values()
            if (error := piece.encoder.error) is not None
        ]
        flat = merged_state(found).get("", {})
        return {name: error.reshape(self._parameters[name].shape) for name, error in flat.items()}

    def take_errors(self, errors: Mapping[str, Tensor]) -> None:
        """Add residuals, by parameter, to this worker's."""
        for name, flat in errors.items():
            for key, part, place in self.places.get(name, ()):
                own = self.pieces[key].encoder
                error = torch.zeros(self.pieces[key].piece.layout.numel, dtype=flat.dtype, device=flat.device)
                error[place] = flat.reshape(-1)[part.start : part.stop]
                own.take_error(error if own.error is None else error.to(own.error))

    @property
    def keeps_state(self) -> bool:
        """Whether encoders keep residuals or memories from step to step."""
        encoders = [piece.encoder for piece in self.pieces.values()]
        return any(encoder.error is not None or encoder.memory is not None for encoder in encoders)

    @property
    def error_norm(self) -> float:
        errors = [piece.encoder.error for piece in self.pieces.values()]
        return math.sqrt(sum(float(error.square().sum()) for error in errors if error is not None))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all pieces, by whole parameters."""
        return {"pieces": merged_state((piece.piece, piece.state_dict()) for piece in self.pieces.values())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state, made with any division of the same model into pieces."""
        for piece in self.pieces.values():
            piece.load_state_dict(state["pieces"])

    @staticmethod
    def _parts(piece: WorkerPiece) -> Iterable[tuple[Part, slice]]:
        return zip(piece.piece.parts, piece.piece.layout.slices.values(), strict=True)


def _write(tensor: Tensor, part: Part, values: Tensor) -> None:
    """Write to a part of a tensor's components, in place."""
    with torch.no_grad():
        if tensor.is_contiguous():
            tensor.view(-1)[part.start : part.stop] = values
        else:
            whole = tensor.reshape(-1)
            whole[part.start : part.stop] = values
            tensor.copy_(whole.view(tensor.shape))
