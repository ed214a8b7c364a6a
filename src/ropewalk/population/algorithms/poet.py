"""POET: pairs of environments and agents; environments vary, agents learn, and agents move to where they score best.

Wang, Lehman, Clune, Stanley: Paired Open-Ended Trailblazer (POET): Endlessly Generating Increasingly Complex and
Diverse Learning Environments and Their Solutions, 2019 (https://arxiv.org/abs/1901.01753), algorithms 2 to 4.

    one iteration = one generation: rounds of evaluations, each asked for as a whole

    every `reproduce_every`                       CHILDREN ─▶ for each child, the most novel first ──┐
                                                     each with its parent's agent                   │
    always                     STEP                                                                 ▼
    every `transfer_every`       └──▶ each agent in each environment ─▶ CANDIDATES ─▶ PROPOSALS ─▶ the best
                                        unchanged, and perturbed ──────────┘    fine-tuned by one step

A child is kept if it is neither too hard nor too easy, first for its parent's agent and then for the best agent (the
minimal criterion). Differences from the paper: the scores that decide which environments may reproduce belong to the
agents before their last step, so that they need no round of their own; a fine-tuning step is the first step of a new
optimizer, with the noise of the agent's own niche; archived environments keep their agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from numbers import Integral
from typing import Any

import numpy as np

from ropewalk.argument_kinds import check_number
from ropewalk.population.algorithm import Algorithm, Panel
from ropewalk.population.identity import check_identity
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.open_ended.bouts import AgentEnvPair, Bout, BoutEvaluator, BoutRound
from ropewalk.population.open_ended.contest import Contest, TransferCandidate
from ropewalk.population.open_ended.environment_space import Environment, EnvironmentSpace
from ropewalk.population.open_ended.lineage import AgentTransfer, Lineage
from ropewalk.population.open_ended.niche import ESConfig, Niche
from ropewalk.population.open_ended.reproduction import Child, Reproduction
from ropewalk.population.outcome import Outcome
from ropewalk.population.panels.tree import EnvironmentTreePanel
from ropewalk.population.perturbed import start_parameters, usual_table
from ropewalk.population.ranks import shaping
from ropewalk.population.weighted_sum import Draws, Vector, weighted_sums


class RoundPhase(Enum):
    """The purpose of the evaluations of a round."""

    STEP = "step"
    CHILDREN = "children"
    CANDIDATES = "candidates"
    PROPOSALS = "proposals"


class POET(Algorithm[int]):
    """Paired open-ended trailblazer. The fitness function is `fitness(parameters, environment, trial)`.

    Wang et al., Paired Open-Ended Trailblazer (POET), 2019 (https://arxiv.org/abs/1901.01753), algorithms 2 to 4.

    Its results are `pairs`, the active environments with their agents; `archive`, those that were replaced; and
    `lineage`, the descent of all environments.

    Args:
        initial: parameters of the first agent, of shape (parameters,), or their number: then zeros.
        space: the space of environments.
        learning: configuration of the agents' learning.
        reproduction: the rules of reproduction and admission of environments.
        episodes: number of evaluations for a score, which is their mean.
        transfer_every: number of iterations between attempts to transfer agents.
        noise: the noise table; by default one that suits the number of parameters.
        seed: seed of all random numbers.
    """

    def __init__(
        self,
        initial: Any,
        space: EnvironmentSpace,
        *,
        learning: ESConfig | None = None,
        reproduction: Reproduction | None = None,
        episodes: int = 1,
        transfer_every: int = 25,
        noise: NoiseTable | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(1, seed)
        check_number("episodes", episodes, Integral, "a whole number", least=1, required=True)
        check_number("transfer_every", transfer_every, Integral, "a whole number", least=1, required=True)
        missing = [name for name in ("initial", "mutate", "vector", "describe") if not hasattr(space, name)]
        if missing:
            raise TypeError(
                f"{space!r:.80} has no {', '.join(missing)}; see ropewalk.population.open_ended.environment_space"
            )
        start = start_parameters(initial)
        self.learning: ESConfig = learning or ESConfig()
        self.reproduction: Reproduction = reproduction or Reproduction()
        self._space = space
        self._episodes = episodes
        self._transfer_every = transfer_every
        self._draws = Draws(noise or usual_table(len(start)), seed, len(start))
        self._weigh = shaping(self.learning.shaping)

        self.lineage: Lineage = Lineage()
        self.archive: list[AgentEnvPair] = []
        """The newest pairs that were archived to make room, oldest first."""
        first = self.lineage.add(space.initial(), None, 0)
        self._niches = [Niche(first.number, first.environment, start, self.learning)]
        self._num_evaluations = 0
        self._num_draws = 0
        self._num_late = 0
        self._offspring: list[Child] = []
        """Children that may still be admitted in this iteration, the most novel first."""
        self._child: Child | None = None
        """The child in which agents are being evaluated; None while they are evaluated in each other's environments."""
        self._num_admitted = 0
        self._direct: list[float | None] = []
        """Scores of unchanged agents, by target and then source, while fine-tuned ones are evaluated."""
        self._begin_iteration()

    @property
    def pairs(self) -> list[AgentEnvPair]:
        """The active environments with their agents, oldest first."""
        return [niche.pair for niche in self._niches]

    def ask(self, n: int) -> range:
        """Return numbers of the current round; none while outcomes of it are missing."""
        return self._round.ask(n)

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        self._num_late += len(candidates) - self._round.tell(candidates, outcomes)
        self._go_on()

    def drop(self, candidates: Sequence[int]) -> None:
        self._round.drop(candidates)
        self._go_on()

    def evaluator(self) -> BoutEvaluator:
        return self._round.evaluator

    def incumbent(self) -> AgentEnvPair:
        """Return the newest active pair whose agent may reproduce; if there is none, the pair with the best score."""
        able = [pair for pair in self.pairs if self.reproduction.may_reproduce(pair.score)]
        return able[-1] if able else max(self.pairs, key=lambda pair: -np.inf if pair.score is None else pair.score)

    def panels(self) -> Mapping[str, Panel]:
        """Return the panel "tree"."""
        tree = EnvironmentTreePanel(self.lineage, self._space.describe)
        return {"tree": lambda cursor: tree.data(self.pairs, self.generation, cursor)}

    def figures(self) -> dict[str, float]:
        """Return the numbers of environments and transfers, scores, and the number of late evaluations."""
        scores = [pair.score for pair in self.pairs if pair.score is not None]
        figures = {
            "niches": float(len(self._niches)),
            "environments": float(len(self.lineage.branches)),
            "transfers": float(len(self.lineage.transfers)),
            "late": float(self._num_late),
        }
        if scores:
            figures |= {"score_mean": float(np.mean(scores)), "score_worst": min(scores), "score_best": max(scores)}
        return figures

    # Rounds

    def _begin(
        self,
        phase: RoundPhase,
        bouts: Sequence[Bout],
        environments: Sequence[Environment],
        agents: Sequence[Vector] | None = None,
    ) -> None:
        self._phase = phase
        agents = agents or [niche.parameters for niche in self._niches]
        self._round = BoutRound(self._num_evaluations, bouts, agents, environments, self._draws)
        self._num_evaluations = self._round.end
        self.population: int = self._round.size

    def _go_on(self) -> None:
        """Learn from the round if it is complete, and begin the next one."""
        if not self._round.is_complete:
            return
        match self._phase:
            case RoundPhase.STEP:
                self._learn()
            case RoundPhase.CHILDREN:
                self._select_children()
            case RoundPhase.CANDIDATES:
                self._propose()
            case RoundPhase.PROPOSALS:
                self._place_agents()

    def _as_it_is(self, agent: int, environment: int) -> Bout:
        return Bout(agent, environment, self._episodes)

    def _perturbed(self, agent: int, environment: int) -> Bout:
        num = self.learning.pairs
        self._num_draws += num
        return Bout(agent, environment, 2 * num, self._niches[agent].sigma, self._num_draws - num)

    def _gradients(self, bouts: Sequence[int]) -> list[Vector]:
        """Return the gradient of each perturbed bout: its weighted sum of noise over its number of evaluations."""
        groups = [self._round.group(bout, self._weigh) for bout in bouts]
        sums = weighted_sums(self._draws, [group for group, _ in groups], self.map)
        return [np.divide(total[0], np.float32(max(num, 1))) for total, (_, num) in zip(sums, groups, strict=True)]

    # One iteration: algorithm 2

    def _begin_iteration(self) -> None:
        if self.reproduction.is_due(self.generation):
            self._num_admitted = 0
            rng = np.random.default_rng([self.seed, self.generation])
            self._offspring = self.reproduction.mutations(self._space, self.pairs, rng)
            if self._offspring:
                agent_of = {niche.number: agent for agent, niche in enumerate(self._niches)}
                bouts = [self._as_it_is(agent_of[child.parent], place) for place, child in enumerate(self._offspring)]
                self._begin(RoundPhase.CHILDREN, bouts, [child.environment for child in self._offspring])
                return
        self._begin_step()

    def _begin_step(self) -> None:
        numbers = range(len(self._niches))
        bouts = [self._perturbed(i, i) for i in numbers] + [self._as_it_is(i, i) for i in numbers]
        self._begin(RoundPhase.STEP, bouts, [niche.environment for niche in self._niches])

    def _learn(self) -> None:
        num = len(self._niches)
        for i, (niche, gradient) in enumerate(zip(self._niches, self._gradients(range(num)), strict=True)):
            self._record(niche, self._round.score(num + i))
            niche.learn(gradient)
        if num > 1 and self.generation % self._transfer_every == 0:
            self._begin_candidates()
        else:
            self._end_iteration()

    def _end_iteration(self) -> None:
        self.generation += 1
        self._begin_iteration()

    # The best agent for each environment: algorithm 4

    def _targets(self) -> list[Environment]:
        return [self._child.environment] if self._child else [niche.environment for niche in self._niches]

    @property
    def _contest(self) -> Contest:
        return Contest(len(self._niches), child=self._child is not None)

    def _begin_candidates(self) -> None:
        direct = [self._as_it_is(source, target) for target, source in self._contest.entries]
        tuned = [self._perturbed(source, target) for target, source in self._contest.guests]
        self._begin(RoundPhase.CANDIDATES, direct + tuned, self._targets())

    def _propose(self) -> None:
        num_direct, guests = len(self._contest.entries), self._contest.guests
        self._direct = [self._round.score(bout) for bout in range(num_direct)]
        gradients = self._gradients(range(num_direct, num_direct + len(guests)))
        proposals = [
            self._niches[source].fine_tuned(gradient) for (_, source), gradient in zip(guests, gradients, strict=True)
        ]
        bouts = [self._as_it_is(place, target) for place, (target, _) in enumerate(guests)]
        self._begin(RoundPhase.PROPOSALS, bouts, self._targets(), proposals)

    def _place_agents(self) -> None:
        contest = self._contest
        proposed = [self._round.score(bout) for bout in range(len(contest.guests))]
        arrivals = [contest.best(target, self._direct, proposed) for target in range(len(self._targets()))]
        if self._child:
            self._admit(self._child, arrivals[0])
            self._next_child()
            return
        agents = [self._parameters(arrival) for arrival in arrivals]  # copied before any agent moves
        homes = contest.home_scores(self._direct)
        for niche, home, arrival, agent in zip(self._niches, homes, arrivals, agents, strict=True):
            if home is None or arrival.score <= home:
                self._record(niche, home)
                continue
            niche.adopt(agent, None)
            self._record(niche, arrival.score)
            source, fine_tuned = self._niches[arrival.source].number, arrival.proposal is not None
            self.lineage.transfers.append(AgentTransfer(self.generation, source, niche.number, fine_tuned))
        self._end_iteration()

    def _parameters(self, arrival: TransferCandidate) -> Vector:
        if arrival.proposal is None:
            return self._niches[arrival.source].parameters
        return self._round.agents[arrival.proposal].copy()

    # New environments: algorithm 3

    def _select_children(self) -> None:
        scores = [self._round.score(bout) for bout in range(len(self._offspring))]
        fit = [
            child
            for child, score in zip(self._offspring, scores, strict=True)
            if self.reproduction.meets_criterion(score)
        ]
        others = [pair.environment for pair in self.archive + self.pairs]
        self._offspring = self.reproduction.most_novel_first(self._space, fit, others)
        self._next_child()

    def _next_child(self) -> None:
        if self._offspring and self._num_admitted < self.reproduction.admitted:
            self._child = self._offspring.pop(0)
            self._begin_candidates()
            return
        self._child, self._offspring = None, []
        while len(self._niches) > self.reproduction.capacity:
            self._retire(self._niches.pop(0))
        self._begin_step()

    def _admit(self, child: Child, arrival: TransferCandidate) -> None:
        if self.reproduction.meets_criterion(arrival.score):
            self._num_admitted += 1
            branch = self.lineage.add(child.environment, child.parent, self.generation)
            self._niches.append(Niche(branch.number, child.environment, self._parameters(arrival), self.learning))
            self._record(self._niches[-1], arrival.score)
            self.happened("", f"environment {branch.number}, a child of {child.parent}, is admitted")

    def _retire(self, niche: Niche) -> None:
        self.happened("", f"environment {niche.number} is archived to make room")
        self.lineage.branches[niche.number].retired = self.generation
        self.archive.append(niche.pair)
        del self.archive[: max(0, len(self.archive) - self.reproduction.archive_capacity)]

    def _record(self, niche: Niche, score: float | None) -> None:
        if score is not None:
            niche.score = score
            self.lineage.scored(niche.number, score)

    # State

    def state_dict(self) -> dict[str, Any]:
        return {
            "problem": self._problem,
            "generation": self.generation,
            "num_evaluations": self._num_evaluations,
            "num_draws": self._num_draws,
            "num_late": self._num_late,
            "niches": [niche.state_dict() for niche in self._niches],
            "archive": [asdict(pair) for pair in self.archive],
            "lineage": self.lineage.state_dict(),
            "brood": [asdict(child) for child in self._offspring],
            "child": asdict(self._child) if self._child else None,
            "num_admitted": self._num_admitted,
            "direct": list(self._direct),
            "phase": self._phase.value,
            "proposals": self._round.agents.copy() if self._phase is RoundPhase.PROPOSALS else None,
            "round": self._round.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_identity(state["problem"], self._problem)
        self.generation: int = int(state["generation"])
        self._num_evaluations, self._num_draws = int(state["num_evaluations"]), int(state["num_draws"])
        self._num_late, self._num_admitted = int(state["num_late"]), int(state["num_admitted"])
        self._niches = [Niche.from_state_dict(niche, self.learning) for niche in state["niches"]]
        self.archive = [AgentEnvPair(**pair) for pair in state["archive"]]
        self.lineage = Lineage.from_state_dict(state["lineage"])
        self._offspring = [Child(**child) for child in state["brood"]]
        self._child = Child(**state["child"]) if state["child"] else None
        self._direct = list(state["direct"])
        self._phase = RoundPhase(state["phase"])
        agents, environments = [niche.parameters for niche in self._niches], self._targets()
        if self._phase is RoundPhase.PROPOSALS:
            agents = [np.array(proposal, np.float32) for proposal in state["proposals"]]
        if self._phase is RoundPhase.CHILDREN:
            environments = [child.environment for child in self._offspring]
        self._round = BoutRound.from_state_dict(state["round"], agents, environments, self._draws)
        self.population = self._round.size

    @property
    def _problem(self) -> dict[str, Any]:
        """The facts that a state must match."""
        return {
            "algorithm": "POET",
            "dim": self._draws.dim,
            "seed": self.seed,
            "table": repr(self._draws.table),
            "episodes": self._episodes,
            "transfer_every": self._transfer_every,
            **asdict(self.learning),
            **asdict(self.reproduction),
        }
