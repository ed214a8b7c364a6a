"""The panel "tree": the environments of an open-ended run with their parents, and how well they are solved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.control.columns import finite
from ropewalk.population.open_ended.bouts import AgentEnvPair
from ropewalk.population.open_ended.environment_space import Environment
from ropewalk.population.open_ended.lineage import Lineage

_MOST_TRANSFERS = 1000
"""The newest that are shown."""
_MOST_CHARACTERS = 80
"""Of the description of an environment."""


class EnvironmentTreePanel:
    """Makes the data of one run.

    Args:
        lineage: of the run; it must not change during a call.
        describe: returns the description of an environment.
    """

    def __init__(self, lineage: Lineage, describe: Callable[[Environment], str]) -> None:
        self._lineage, self._describe = lineage, describe
        self._labels: list[str] = []

    def data(self, pairs: Sequence[AgentEnvPair], generation: int, cursor: int = 0) -> dict[str, Any]:
        """Return all environments that were ever admitted, and the newest transfers of agents.

        The form is `{"generation": number, "environments": [{"number", "parent", "label", "born", "retired", "best",
        "score"}], "transfers": [{"generation", "source", "target", "fine_tuned"}]}`. `parent` is None for the first
        environment, `retired` for those that are active. `best` is the best score that an agent ever had there, and
        `score` that of the agent which is there now; None if there is none. Transfers are the newest 1000, oldest
        first: an agent of `source` replaced that of `target`.

        Args:
            pairs: the active environments with their agents.
            generation: the current one.
            cursor: not used: an answer has everything.
        """
        del cursor
        branches = self._lineage.branches
        self._labels += [self._label(each.environment) for each in branches[len(self._labels) :]]
        scores = {pair.number: pair.score for pair in pairs}
        return {
            "generation": generation,
            "environments": [
                {
                    "number": each.number,
                    "parent": each.parent,
                    "label": self._labels[each.number],
                    "born": each.born,
                    "retired": each.retired,
                    "best": finite(each.score),
                    "score": finite(scores.get(each.number)),
                }
                for each in branches
            ],
            "transfers": [
                {
                    "generation": each.generation,
                    "source": each.source,
                    "target": each.target,
                    "fine_tuned": each.fine_tuned,
                }
                for each in self._lineage.transfers[-_MOST_TRANSFERS:]
            ],
        }

    def _label(self, environment: Environment) -> str:
        try:
            return str(self._describe(environment))[:_MOST_CHARACTERS]
        except Exception:  # of the user's space: a picture must not end a run, nor hide the other environments
            return repr(environment)[:_MOST_CHARACTERS]


__all__ = ["EnvironmentTreePanel"]
