"""Fork servers: what the processes that they fork find imported, and how."""

from __future__ import annotations

import gc
import sys

import pytest

import ropewalk as rw

pytestmark = pytest.mark.usefixtures("shared_session")


def collections_and_thresholds() -> tuple[int | None, bool, tuple[int, int, int], int]:
    module = sys.modules.get("tests.processes.many_objects")
    return getattr(module, "num_collections", None), gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()


def test_the_collector_does_not_look_at_what_is_preloaded_and_looks_at_all_else() -> None:
    # It took a quarter of the time in which torch is imported.
    with rw.Pool(1, preload=["tests.processes.many_objects"]) as pool:
        num, is_enabled, thresholds, num_frozen = pool.apply(collections_and_thresholds)
    assert num == 0 and num_frozen > 100_000
    assert is_enabled and thresholds == gc.get_threshold()


def test_a_preloaded_module_may_set_the_thresholds_of_the_collector() -> None:
    with rw.Pool(1, preload=["tests.processes.own_threshold"]) as pool:
        assert pool.apply(collections_and_thresholds)[1:3] == (True, (5_000, 20, 20))
