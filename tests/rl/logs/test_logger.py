"""Where progress may go."""

from __future__ import annotations

import pytest

from ropewalk import rl
from ropewalk.rl.logs.logger import as_logger


def test_each_row_goes_to_all_loggers_of_a_list() -> None:
    first, second = rl.MemoryLogger(), rl.MemoryLogger()
    as_logger([first, "silent", second])("end", {"steps": 3})
    assert first.rows == second.rows == {"end": [{"steps": 3}]}


def test_an_unknown_name_is_refused_in_a_list_too() -> None:
    with pytest.raises(ValueError, match=r"TensorBoardLogger.*or a list of these, not 'tensorboard'"):
        as_logger(["terminal", "tensorboard"])
