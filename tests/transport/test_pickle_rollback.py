"""What is noted while something is pickled is called if that is given up, and only then."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from ropewalk.errors import NotPicklable, PeerLost
from ropewalk.transport.pickle_rollback import PickleAttempt, on_rollback
from ropewalk.transport.serialization import dumps


class Noting:
    """Notes that it was pickled, and that this was given up."""

    def __init__(self) -> None:
        self.num_pickled = 0
        self.num_given_up = 0

    def __reduce__(self) -> Any:
        self.num_pickled += 1
        on_rollback(self.give_up)
        return int, ()

    def give_up(self) -> None:
        self.num_given_up += 1

    @property
    def num_under_way(self) -> int:
        return self.num_pickled - self.num_given_up


def test_a_pickle_that_is_made_is_under_way_once_however_many_picklers_were_tried() -> None:
    plain, beside_code = Noting(), Noting()
    dumps([plain])
    dumps([beside_code, lambda: None])
    assert (plain.num_pickled, plain.num_under_way) == (1, 1)
    assert (beside_code.num_pickled, beside_code.num_under_way) == (2, 1)


def test_nothing_is_under_way_of_what_cannot_be_pickled_nor_of_the_search_for_the_culprit() -> None:
    noting = Noting()
    with pytest.raises(NotPicklable):
        dumps({"a": [noting], "b": (noting, threading.Lock())})
    assert noting.num_pickled > 1
    assert noting.num_under_way == 0


@pytest.mark.parametrize(("error", "num_under_way"), [(ValueError, 0), (PeerLost, 1), (KeyboardInterrupt, 1)])
def test_an_error_around_it_gives_it_up_unless_it_may_have_been_sent(error: Any, num_under_way: int) -> None:
    noting = Noting()

    def send() -> None:
        with PickleAttempt():
            dumps(noting)
            raise error

    with pytest.raises(error):
        send()
    assert noting.num_under_way == num_under_way


def test_without_a_trial_nothing_is_noted() -> None:
    noting = Noting()
    pickle.dumps(noting)
    with pytest.raises(ValueError), PickleAttempt():
        raise ValueError
    assert noting.num_given_up == 0
