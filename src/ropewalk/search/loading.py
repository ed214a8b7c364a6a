"""Results of a search that another process has run, or still runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.search.book import SearchBook
from ropewalk.search.results import SearchResults
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.schedulers.no_scheduler import NoScheduler
from ropewalk.search.space import SearchSpace
from ropewalk.search.store_keeper import lines_of
from ropewalk.tracking.store.opening import open_store


def load_results(search: str, store: str | Path | None = None) -> SearchResults:
    """Return the trials of a search from a store, as far as they are stored.

    Args:
        search: id of the search's run, the beginning of it, or its name.
        store: path or URL of the store; None: the setting `store`.

    Raises:
        RunNotFound: there is no such run.
        SearchInvalid: that run is no search.
        StoreError: the store cannot be opened.
    """
    with open_store(store, create=False) as opened:
        row = opened.run(search)
        if row.kind != "search":
            raise SearchInvalid(f"run {row.name!r} ({row.id}) is a {row.kind}, and no search")
        lines = lines_of(opened, row.id)
    book = SearchBook(
        NoScheduler(), _NoSampler(), metrics=row.config["metric"], modes=row.config["mode"], max_trials=None
    )
    book.replay(lines, checks=False)
    return SearchResults.of(book, row.name, row.id, Path(row.folder).parent)


class _NoSampler(Sampler):
    """Takes the place of a sampler where nothing is sampled."""

    def begin(self, space: SearchSpace, objectives: int, seed: int) -> None:
        """Nothing is sampled."""

    def ask(self, number: int, trials: Sequence[Observed]) -> dict[str, Any] | None:
        return None
