"""Copies of buffers from before a forward, for running the same forward again: in a recomputation, or after a resume.

Buffers of batch normalisations are not copied: they change at an update, not in a forward.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ropewalk.pipeline.tracing.stage_program import StageProgram


class EntryBuffers:
    """Copies of a stage's buffers.

    Args:
        program: the stage's program.
        buffers: the stage's buffers; the copied ones are those that its forwards change in place.
    """

    def __init__(self, program: StageProgram, buffers: Mapping[str, Tensor]) -> None:
        own = {norm.running_mean for norm in program.batch_norms}
        own |= {norm.running_var for norm in program.batch_norms}
        own |= {norm.num_batches_tracked or "" for norm in program.batch_norms}
        self._buffers = {name: buffers[name] for name in program.buffers if name not in own}
        self._read_only: dict[str, tuple[int, Tensor]] = {}
        """The last copies that were given out for reading only, with the version of the buffer that they are copies of.
        """

    def copies(self) -> Mapping[str, Tensor] | None:
        """Return copies for one forward, which may change them; None if the stage has no such buffers."""
        return {name: buffer.clone() for name, buffer in self._buffers.items()} or None

    def read_only(self) -> Mapping[str, Tensor] | None:
        """Return copies for reading only; those of unchanged buffers are the same as in the last call."""
        if not self._buffers:
            return None
        for name, buffer in self._buffers.items():
            state = buffer._version  # pyright: ignore[reportPrivateUsage]  # how autograd finds writes in place
            if name not in self._read_only or self._read_only[name][0] != state:
                self._read_only[name] = state, buffer.clone()
        return {name: copy for name, (_, copy) in self._read_only.items()}
