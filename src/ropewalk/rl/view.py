"""What an experiment shows of itself while it runs, and afterwards. Pure.

rows of progress, evaluations ──▶ facts, panels "returns" and "throughput"
facts of tables, while somebody looks ──▶ panel "replay"
lags of blocks and of batches ──▶ panel "staleness"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ropewalk.control.columns import MOST_POINTS, columns, finite, places
from ropewalk.rl.deliveries import ActorFacts, lag_edges
from ropewalk.rl.logs.logger import LogRow
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.table_info import TableInfo

if TYPE_CHECKING:
    from ropewalk.rl.result import EvaluationScores

_MOST_CHARACTERS = 80
"""Of the name of an environment."""
_LEAST_S = 0.5
"""Seconds between two points of a curve, at least."""
RATES_S = 2.0
"""The same for rates: in less, blocks and batches come one at a time."""


@dataclass(frozen=True, slots=True)
class NumberedRow:
    """A row of progress.

    Attributes:
        number: number of the row among all, those included that are not kept.
        row: its values.
    """

    number: int
    row: LogRow

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return float(self.row["seconds"] or 0)


@dataclass(frozen=True, slots=True)
class NumberedEvaluation:
    """An evaluation.

    Attributes:
        number: number of rows of progress before it.
        scores: what was found.
    """

    number: int
    scores: EvaluationScores


def spaced(
    rows: Sequence[NumberedRow], base: NumberedRow | None, *, least_s: float = _LEAST_S, is_over: bool = False
) -> list[NumberedRow]:
    """Return rows that are far enough apart in time for a curve of about 2000 points.

    Args:
        rows: those after `base`, in order.
        base: the last one that was chosen before; None for none.
        least_s: seconds between two of them, at least; in a long run there are more.
        is_over: whether the last row is chosen anyway.
    """
    if not rows:
        return []
    distance = max(least_s, rows[-1].seconds / MOST_POINTS)
    due = base.seconds + distance if base else 0.0
    chosen: list[NumberedRow] = []
    for row in rows:
        if row.seconds >= due or (is_over and row is rows[-1]):
            chosen.append(row)
            due = row.seconds + distance
    return chosen


def returns_panel(
    chosen: Sequence[NumberedRow], evaluations: Sequence[NumberedEvaluation], cursor: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return how good the policy is, in training and in evaluations, after a cursor.

    The form is `{"cursor": number of rows so far, "steps": [...], "seconds": [...], "score": [...], "episodes": [...],
    "evaluations": [{"steps", "mean", "worst", "best", "episodes"}], "total_steps": number, "stop_at": score or None}`.
    Lists of numbers are of one length. `score` is the mean undiscounted return of the last 100 episodes of training,
    with exploration; None before the first has ended. Evaluations are without exploration.

    Args:
        chosen: the rows; see `spaced`.
        evaluations: all of them.
        cursor: that of the last answer, or 0.
        settings: `total_steps` and `stop_at` of the experiment.
    """
    end = chosen[-1].number + 1 if chosen else cursor
    new = [each.scores for each in evaluations if cursor <= each.number < end]
    return {
        "cursor": end,
        **columns([each.row for each in chosen], ("steps", "seconds", "score", "episodes")),
        "evaluations": [
            {
                "steps": scores.steps,
                "mean": finite(scores.mean),
                "worst": finite(min(scores.scores)),
                "best": finite(max(scores.scores)),
                "episodes": len(scores.scores),
            }
            for scores in (new[place] for place in places(0, len(new)))
        ],
        **settings,
    }


def throughput_panel(
    chosen: Sequence[NumberedRow], base: NumberedRow | None, cursor: int, items_per_update: int
) -> dict[str, Any]:
    """Return how fast actors and learners are, after a cursor: the mean between one point and the next.

    The form is `{"cursor": number of rows so far, "seconds": [...], "env_steps_per_s": [...], "updates_per_s": [...],
    "samples_per_s": [...], "bound": text}`: lists of one length, seconds since the run began, and which side limits the
    other now, in words. A sample is an item that a learner has drawn from replay.

    Args:
        chosen: the rows; see `spaced`.
        base: the row before them; None for none.
        cursor: that of the last answer, or 0.
        items_per_update: number of items that an update learns from, those of all learners together.
    """
    rows = [base, *chosen] if base else chosen
    pairs = [(one, other) for one, other in pairwise(rows) if other.seconds > one.seconds]
    updates = [_rate(one, other, "updates") for one, other in pairs]
    return {
        "cursor": chosen[-1].number + 1 if chosen else cursor,
        "seconds": [other.seconds for _, other in pairs],
        "env_steps_per_s": [_rate(one, other, "steps") for one, other in pairs],
        "updates_per_s": updates,
        "samples_per_s": [rate * items_per_update for rate in updates],
        "bound": str(rows[-1].row.get("bound") or "") if rows else "",
    }


def _rate(one: NumberedRow, other: NumberedRow, name: str) -> float:
    """Return by how much a count rises in a second; 0 where it went back with a learner that died."""
    return max(0.0, (float(other.row[name] or 0) - float(one.row[name] or 0)) / (other.seconds - one.seconds))


def replay_settings(tables: Sequence[ReplayTable]) -> dict[str, dict[str, float | None]]:
    """Return by what tables of replay are limited, by name: the numbers of the formulas of their limiters."""
    formulas = {table.name: table.limiter.formula() for table in tables}
    return {
        name: {
            "target": formula.samples_per_insert if math.isfinite(formula.min_diff) else None,
            "min_size": formula.min_size,
            "min_diff": finite(formula.min_diff),
            "max_diff": finite(formula.max_diff),
        }
        for name, formula in formulas.items()
    }


def replay_point(name: str, info: TableInfo, seconds: float, before: TableInfo | None) -> dict[str, Any]:
    """Return a table at one moment, as a point of the panel "replay".

    Args:
        name: name of the table, with that of its learner if there are several.
        info: the table now.
        seconds: since the run began.
        before: at the last point; None for none.
    """
    inserts, samples = (info.inserts, info.samples)
    if before and before.inserts <= inserts:
        inserts, samples = inserts - before.inserts, samples - before.samples
    return {
        "table": name,
        "seconds": seconds,
        "size": info.size,
        "bytes": info.num_bytes,
        "inserts": info.inserts,
        "samples": info.samples,
        "samples_per_insert": samples / inserts if inserts > 0 and samples >= 0 else None,
    }


def replay_panel(
    points: Sequence[Mapping[str, Any]],
    first: int,
    newest: Mapping[str, TableInfo],
    settings: Mapping[str, Mapping[str, Any]],
    cursor: int,
) -> dict[str, Any]:
    """Return how full the tables of replay are, and how often their items are sampled, after a cursor.

    The form is `{"cursor": number of points so far, "points": [{"table", "seconds", "size", "bytes", "inserts",
    "samples", "samples_per_insert"}], "tables": {name: {"size", "max_size", "target", "min_size", "min_diff",
    "max_diff", "insert_waits_for", "sample_waits_for"}}}`. Points are about a second apart, and there are none of the
    time in which nobody looked. `inserts` and `samples` count items since the table was made, `samples_per_insert` is
    their ratio since the last point. `target` is the number of samples per insert at which the limiter holds it, and
    None if it lets samplers fall behind without limit; `min_diff` and `max_diff` are the bounds of the samples that are
    owed; None: there is none. `insert_waits_for` says why nothing may be inserted now; "": it may.

    Args:
        points: those that are kept.
        first: number of the first of them.
        newest: the tables as they were at the last points, by name.
        settings: settings of the tables, by their own names; see `replay_settings`.
        cursor: that of the last answer, or 0.
    """
    return {
        "cursor": first + len(points),
        "points": [dict(point) for point in points[max(0, cursor - first) :]],
        "tables": {
            name: {
                "size": info.size,
                "max_size": info.max_size,
                **settings.get(info.name, {}),
                "insert_waits_for": info.insert_waits_for,
                "sample_waits_for": info.sample_waits_for,
            }
            for name, info in newest.items()
        },
    }


def staleness_panel(
    actors: Mapping[int, ActorFacts], counts: Mapping[int, Sequence[int]], row: LogRow, unit: str
) -> dict[str, Any]:
    """Return how old the weights were with which experience was collected.

    The form is `{"unit": "updates" or "rounds", "edges": [0, 1, 2, 3, 5, 9, ...], "actors": [{"actor", "counts",
    "last", "max", "blocks", "dropped", "refused", "lives"}], "batches": {"mean", "max"}}`. The lag of a block is the
    number of updates by which its weights were behind the newest ones when it came to the learner. `counts` has the
    number of blocks whose lag is at least the edge of the same index, and below the next edge; "actor" is the number of
    the group of environments. In lock-step no block is late, and there are no actors here. `batches` has the lag of the
    items in the last batch that was learned from: those of replay are older than blocks. None: it is not known.

    Args:
        actors: what is known of the actors, by group.
        counts: counts of each group, the number of blocks by lag; see `Deliveries.lags`.
        row: the last row of progress.
        unit: unit of lags.
    """
    num = max((len(each) for each in counts.values()), default=0)
    return {
        "unit": unit,
        "edges": lag_edges(num),
        "actors": [
            {
                "actor": group,
                "counts": [*counts.get(group, ()), *[0] * (num - len(counts.get(group, ())))],
                "last": facts.lag,
                "max": facts.lag_max,
                "blocks": facts.blocks,
                "dropped": facts.stale,
                "refused": facts.refused,
                "lives": facts.lives,
            }
            for group, facts in sorted(actors.items())
        ],
        "batches": {"mean": finite(row.get("policy_lag")), "max": finite(row.get("policy_lag_max"))},
    }


def environment_name(environment: object) -> str:
    """Return the name of an environment: its id, as Gymnasium has it, or what its settings say of themselves."""
    return str(getattr(environment, "id", environment))[:_MOST_CHARACTERS]


def facts_of(
    rows: Sequence[NumberedRow], evaluations: Sequence[NumberedEvaluation], settings: Mapping[str, float | int | str]
) -> dict[str, float | int | str]:
    """Return what stands in the header of an experiment.

    Args:
        rows: the last two points, or fewer; see `spaced`.
        evaluations: all of them.
        settings: such as agent, environment and total steps.
    """
    facts: dict[str, float | int | str | None] = dict(settings)
    if rows:
        row = rows[-1].row
        facts |= {name: finite(row.get(of)) for name, of in _COUNTS.items()}
        rates = throughput_panel(rows[1:], rows[0], 0, 1)
        for name in ("env_steps_per_s", "updates_per_s"):
            facts[name] = rates[name][-1] if rates[name] else None
    if evaluations:
        facts["evaluation"] = finite(evaluations[-1].scores.mean)
        facts["best_evaluation"] = finite(max(each.scores.mean for each in evaluations))
    if rows:
        facts |= {name: str(value) for name in ("lag", "bound") if (value := rows[-1].row.get(name))}
    return {name: value for name, value in facts.items() if value is not None}


_COUNTS = {"env_steps": "steps", "return": "score", "episodes": "episodes", "updates": "updates"}


__all__ = [
    "RATES_S",
    "NumberedEvaluation",
    "NumberedRow",
    "environment_name",
    "facts_of",
    "replay_panel",
    "replay_point",
    "replay_settings",
    "returns_panel",
    "spaced",
    "staleness_panel",
    "throughput_panel",
]
