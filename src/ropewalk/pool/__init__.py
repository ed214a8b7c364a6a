"""Process pools: tasks, workers and results, with the names of `multiprocessing.pool`."""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(globals())

with _lazy:
    from multiprocessing import TimeoutError as TimeoutError
    from multiprocessing.pool import MaybeEncodingError as MaybeEncodingError  # type: ignore[attr-defined]
    from multiprocessing.pool import RemoteTraceback as RemoteTraceback  # type: ignore[attr-defined]
    from multiprocessing.pool import ThreadPool as ThreadPool

    from ropewalk.pool.imap_results import IMapIterator as IMapIterator
    from ropewalk.pool.imap_results import IMapUnorderedIterator as IMapUnorderedIterator
    from ropewalk.pool.pool import Pool as Pool
    from ropewalk.pool.results import ApplyResult as ApplyResult
    from ropewalk.pool.results import AsyncResult as AsyncResult
    from ropewalk.pool.results import MapResult as MapResult
