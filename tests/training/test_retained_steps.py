"""What a death repeats is what was admitted since the newest cut, in its order."""

from __future__ import annotations

import torch

from ropewalk.pipeline.stages.micro_batches import MiniBatch
from ropewalk.training.retained_steps import Retained, RetainedSteps


def admitted(*steps: int) -> tuple[RetainedSteps, list[Retained]]:
    retained, ones = RetainedSteps(), [Retained(step, 4, None, None, drains=False) for step in steps]
    for one in ones:
        retained.add(one)
        one.futures = {}
        retained.sent(one)
    return retained, ones


def test_an_admission_is_done_for_the_first_time_once_over_all_epochs() -> None:
    retained, (one,) = admitted(0)
    assert retained.done(one) and retained.num_under_way == 0
    assert retained.restart() == [one] and one.futures is None and not one.is_done
    retained.sent(one)
    assert not retained.done(one)


def test_a_restart_repeats_all_in_order_and_nothing_is_under_way() -> None:
    retained, ones = admitted(0, 1, 2)
    retained.done(ones[0])
    assert retained.first_under_way is ones[1]
    assert retained.restart() == ones and retained.num_under_way == 0


def test_without_snapshots_only_what_follows_the_first_that_is_not_done_stays() -> None:
    retained, ones = admitted(0, 1, 2)
    for one in (ones[0], ones[2]):
        retained.done(one)
    retained.drop_done()
    assert retained.restart() == ones[1:]


def test_an_admission_that_was_not_sent_is_not_repeated() -> None:
    retained, ones = admitted(0, 1)
    unsent = Retained(2, 4, None, None, drains=False)
    retained.add(unsent)
    retained.remove(unsent)
    assert retained.restart() == ones


def test_the_size_of_an_admission_is_that_of_the_tensors_that_are_kept_for_it() -> None:
    batch = MiniBatch(0, {"x": (torch.zeros(3, 4), torch.zeros(5, dtype=torch.int8))}, torch.zeros(2), (3,))
    assert Retained(0, 4, batch, None, drains=False).size_bytes == 3 * 4 * 4 + 5 + 2 * 4
    assert Retained(0, 4, None, None, drains=False).size_bytes == 0


def test_what_precedes_a_cut_is_dropped_and_the_words_say_what_is_repeated() -> None:
    retained, ones = admitted(3, 4, 5)
    for one in ones[:2]:
        retained.done(one)
    retained.drop(1)
    assert str(retained) == "training goes on with step 4; it repeats 1 step that had been done"
    retained.clear()
    assert retained.positions == [] and str(retained).startswith("training goes on with the next step")
