"""Word count over real text: the distributed counts are those of one process."""

from __future__ import annotations

import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path

LoadExample = Callable[[str], types.ModuleType]
FOLDER = Path(__file__).parents[2] / "examples"


def test_words_are_runs_of_letters_in_lower_case(load_example: LoadExample, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("The cat, the_dog; THE 2 cats.", encoding="utf-8")
    example = load_example("map_reduce")
    assert example.words(str(tmp_path / "text")) == ["the", "cat", "the", "dog", "the", "cats"]
    assert example.count_here([str(tmp_path / "text")] * 2)["the"] == 6


def test_every_process_gives_a_word_to_the_same_reducer(load_example: LoadExample) -> None:
    example = load_example("map_reduce")
    here = [example.partition(word, 5) for word in ("self", "rope", "walk")]
    code = "from map_reduce import partition; print([partition(word, 5) for word in ('self', 'rope', 'walk')])"
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=FOLDER, env={"PYTHONHASHSEED": salt}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout == f"{here}\n", done.stderr


def test_words_are_spread_over_all_reducers(load_example: LoadExample) -> None:
    example = load_example("map_reduce")
    shares = Counter(example.partition(word, 4) for word in example.count_here(example.texts(20)))
    assert set(shares) == {0, 1, 2, 3} and min(shares.values()) > 0.8 * max(shares.values())


def test_a_part_that_arrives_twice_counts_once(load_example: LoadExample) -> None:
    reducer = load_example("map_reduce").Reducer()
    for path in ("a", "b", "a"):
        reducer.keep(path, Counter({"rope": 2}))
    assert reducer.reduce() == {"rope": 4}


def test_the_counts_are_those_of_one_process(load_example: LoadExample, mode: str) -> None:
    example = load_example("map_reduce")
    counts = example.main(mode=mode)
    assert counts == example.count_here(example.texts())
    assert counts["self"] > 1000 and len(counts) > 1000
