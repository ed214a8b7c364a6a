"""Buffers as they were when a forward began, for the same forward to run again: in a recomputation, or after a resume.

Those of batch normalisations are none of these: an update commits them, not a forward.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ropewalk.pipeline.tracing.stage_program import StageProgram


class EntryBuffers:
    """Copies of a stage's buffers.

    Args:
        program: of the stage.
        buffers: which its forwards change in place.
    """

    def __init__(self, program: StageProgram, buffers: Mapping[str, Tensor]) -> None:
        own = {norm.running_mean for norm in program.batch_norms}
        own |= {norm.running_var for norm in program.batch_norms}
        own |= {norm.num_batches_tracked or "" for norm in program.batch_norms}
        self._buffers = {name: buffers[name] for name in program.buffers if name not in own}
        #: The last copies that were given out to be only read, and which state of the buffer they are.
        self._read_only: dict[str, tuple[int, Tensor]] = {}

    def copies(self) -> Mapping[str, Tensor] | None:
        """Copies for one forward, which it may change; None if there are none."""
        return {name: buffer.clone() for name, buffer in self._buffers.items()} or None

    def read_only(self) -> Mapping[str, Tensor] | None:
        """Copies that nobody changes; of what has not changed since they were last asked for, the same ones."""
        if not self._buffers:
            return None
        for name, buffer in self._buffers.items():
            state = buffer._version  # pyright: ignore[reportPrivateUsage]  # how autograd finds writes in place
            if name not in self._read_only or self._read_only[name][0] != state:
                self._read_only[name] = state, buffer.clone()
        return {name: copy for name, (_, copy) in self._read_only.items()}
