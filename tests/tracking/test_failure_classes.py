from __future__ import annotations

import json

from ropewalk.tracking.failure_classes import class_of, class_of_exception


def failure(number: int) -> str:
    try:
        raise ValueError(f"batch {number} of /tmp/run-{number}/data is bad at {hex(id(object()))}")
    except ValueError as error:
        return class_of_exception(error)


def test_what_differs_from_one_time_to_the_next_does_not_matter() -> None:
    assert failure(1) == failure(2)
    assert failure(1) == "ValueError in test_failure_classes.py:failure: batch N of /tmp/... is bad at ADDRESS"


def test_the_place_is_the_users_own_code_and_not_a_librarys() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        found = class_of_exception(error)
    assert found.startswith("JSONDecodeError in test_failure_classes.py:test_the_place_is")


def test_other_kinds_places_and_messages_are_other_classes() -> None:
    classes = {
        class_of("ValueError", "a.py:f", "bad shape"),
        class_of("ValueError", "a.py:g", "bad shape"),
        class_of("TypeError", "a.py:f", "bad shape"),
        class_of("ValueError", "a.py:f", "bad type"),
    }
    assert len(classes) == 4


def test_a_death_without_an_exception_has_a_class_too() -> None:
    assert class_of("killed by SIGKILL", "", "") == "killed by SIGKILL"


def test_versions_and_words_with_digits_in_them_stay_apart_from_numbers() -> None:
    assert class_of("E", "", "took 3.5e-3 s on rank 7") == class_of("E", "", "took 12 s on rank 30")
    assert class_of("E", "", "a" * 1000) == class_of("E", "", "a" * 2000), "classes are short"
