from __future__ import annotations

import numpy as np
import pytest

from ropewalk.population.archives import novelty_archive
from ropewalk.population.archives.novelty_archive import NoveltyArchive


def archive_of(rows: np.ndarray, k: int = 10, capacity: int | None = None) -> NoveltyArchive:
    archive = NoveltyArchive(k, capacity)
    for row in rows:
        archive.add(row)
    return archive


def test_novelty_is_the_mean_distance_to_the_k_nearest() -> None:
    rng = np.random.default_rng(0)
    seen, rows = rng.standard_normal((30, 3)), rng.standard_normal((8, 3))
    expected = [np.mean(sorted(np.linalg.norm(seen - row, axis=1))[:4]) for row in rows]
    assert np.allclose(archive_of(seen, k=4).novelty(rows), expected, rtol=1e-12)


def test_while_there_are_fewer_than_k_all_count() -> None:
    archive = archive_of(np.array([[0.0, 0.0], [0.0, 2.0]]))
    assert archive.novelty(np.array([[0.0, 0.0], [0.0, 1.0]])).tolist() == [1.0, 1.0]


def test_nothing_is_novel_against_nothing() -> None:
    assert NoveltyArchive().novelty(np.ones((3, 2))).tolist() == [0.0] * 3


def test_the_bits_do_not_depend_on_how_many_are_asked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    archive, rows = archive_of(rng.standard_normal((40, 2))), rng.standard_normal((50, 2))
    at_once = archive.novelty(rows)
    monkeypatch.setattr(novelty_archive, "_DIFFERENCES", 300)
    assert archive.novelty(rows).tobytes() == at_once.tobytes()


def test_with_a_capacity_the_oldest_leave() -> None:
    archive = archive_of(np.arange(7.0).reshape(-1, 1), k=2, capacity=3)
    assert archive.behaviours.ravel().tolist() == [4.0, 5.0, 6.0]


def test_a_state_holds_all_of_it() -> None:
    archive = archive_of(np.random.default_rng(0).standard_normal((5, 2)))
    copy = NoveltyArchive()
    copy.load_state_dict(archive.state_dict())
    assert np.array_equal(copy.behaviours, archive.behaviours)
    copy.add(np.zeros(2))
    assert (len(copy), len(archive)) == (6, 5)


def test_behaviours_of_another_length_are_refused() -> None:
    archive = archive_of(np.zeros((1, 2)))
    for refused in (lambda: archive.add(np.zeros(3)), lambda: archive.novelty(np.zeros((4, 3)))):
        with pytest.raises(ValueError, match="a behaviour of 3 numbers does not compare with those of 2"):
            refused()


@pytest.mark.parametrize(
    ("k", "capacity", "message"), [(0, None, "k must be a whole number, 1 or more"), (5, 4, "at least k = 5")]
)
def test_arguments_that_cannot_be_are_refused(k: int, capacity: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NoveltyArchive(k, capacity)
