"""Processes that tell their environment; they are to import little, and `test_variables.py` takes 0.2 s in each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import ropewalk


def variables(names: Iterable[str]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def tell(queue: Any, names: Iterable[str]) -> None:
    queue.put(variables(names))


def of_a_process(*names: str) -> dict[str, str | None]:
    queue = ropewalk.SimpleQueue()
    process = ropewalk.Process(target=tell, args=(queue, names))
    process.start()
    found = queue.get()
    process.join()
    process.close()
    return found


def of_a_worker(names: Iterable[str], **options: Any) -> dict[str, str | None]:
    with ropewalk.Pool(1, **options) as pool:
        return pool.apply(variables, (names,))


def nested(names: tuple[str, ...]) -> list[dict[str, str | None]]:
    os.environ["RANK"] = "inner"
    return [of_a_process(*names), of_a_worker(names), of_a_worker(names, resources=ropewalk.Resources(cpus=2))]
