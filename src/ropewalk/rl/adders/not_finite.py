"""Experience that contains NaN or infinity is refused before it reaches replay, with the place where it is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ropewalk.errors import NotFinite
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import Array


def check_finite(block: Block, first_step: int = 0) -> None:
    """Refuse a block with rewards or observations that are not finite.

    Args:
        block: to be checked.
        first_step: number of its first step within its run id, for the message.

    Raises:
        NotFinite: names the environment, the step and the column of the first such value.
    """
    for name, array in _checked(block):
        if np.isfinite(array).all():
            continue
        step, env = (int(each) for each in np.argwhere(~np.isfinite(array))[0][:2])
        bad = array[step, env]
        value = bad[~np.isfinite(bad)].flat[0] if bad.ndim else bad
        raise NotFinite(
            f"{name} of environment {env} is {value} at step {first_step + step} of run {block.run_id} (step {step} of "
            f"block {block.number}); the block was not added to replay. Look at this environment or clip what it gives",
            column=name,
            run_id=block.run_id,
            env=env,
            step=first_step + step,
        )


def _checked(block: Block) -> Iterable[tuple[str, Array]]:
    for name, array in block.columns.items():
        if array.dtype.kind in "fc" and (name == "reward" or name.partition(".")[0] == "observation"):
            yield name, array


__all__ = ["check_finite"]
