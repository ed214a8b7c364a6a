"""Which pool evaluates a population or the trials of a search: it is shown with them, and not only beside them.

They name their pool among their facts; a pool of that name in the same launcher is meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.page.watcher import Seen


def pool_of(whole: Seen, things: Sequence[Seen]) -> Seen | None:
    """Return the pool that evaluates for a thing, the newest of its name; None if it names none, or it is not seen.

    Args:
        whole: a population, a search, or something else.
        things: everything that is seen.
    """
    name = whole.view.facts.get("pool")
    if not name or whole.view.processes:
        return None
    of_name = [
        each
        for each in things
        if each.view.kind == "pool" and each.view.name == name and each.view.pid == whole.view.pid
    ]
    return max(of_name, key=lambda each: (not each.gone, each.view.started), default=None)


def with_pools_below(things: Sequence[Seen]) -> list[tuple[Seen, bool]]:
    """Return all things in their order, each pool after the first that it evaluates for.

    Returns:
        Pairs of a thing, and whether it is the pool of the one above.
    """
    part_of: dict[str, str] = {}
    for whole in things:
        pool = pool_of(whole, things)
        if pool is not None:
            part_of.setdefault(pool.view.id, whole.view.id)
    ordered: list[tuple[Seen, bool]] = []
    for thing in things:
        if thing.view.id not in part_of:
            ordered.append((thing, False))
            ordered += [(part, True) for part in things if part_of.get(part.view.id) == thing.view.id]
    return ordered


__all__ = ["pool_of", "with_pools_below"]
