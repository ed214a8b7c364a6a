"""Numbers the ranks of a group host by host, as `torchrun` does, and lists the GPUs that the ranks of a host see.

    replicas  0   1   2   3                rank  0   1   2   3
    hosts     n1  n2  n1  n2    ───────▶         n1  n1  n2  n2      (replica 0, 2, 1, 3)

Ranks of one host are consecutive, so that `RANK // LOCAL_WORLD_SIZE` is the number of the host where all hosts have
equally many, as scripts for `torchrun` expect. The first replica is rank 0: its process offers the rendezvous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of one rank among the hosts of its group."""

    rank: int
    local_rank: int
    """Its rank on its host, from 0."""
    local_size: int
    """Number of ranks on its host."""
    group_rank: int
    """The number of its host, from 0."""
    num_groups: int
    """Number of hosts."""
    visible_gpus: str = ""
    """CUDA_VISIBLE_DEVICES for the rank; empty to leave what the process has."""


def rank_places(hosts: Sequence[str], gpus: Sequence[str]) -> list[RankPlace]:
    """Return the place of each replica.

    A rank that was given one GPU sees those of all ranks of its host, in the order of their local ranks: then
    `torch.cuda.set_device(LOCAL_RANK)` chooses its own. With several GPUs each, every rank sees its own only.

    Args:
        hosts: the host of each replica.
        gpus: the GPUs that each replica was given, as in CUDA_VISIBLE_DEVICES; empty for none.
    """
    members: dict[str, list[int]] = {}
    for replica, host in enumerate(hosts):
        members.setdefault(host, []).append(replica)
    places: dict[int, RankPlace] = {}
    for group_rank, here in enumerate(members.values()):
        visible = _joined([gpus[replica] for replica in here])
        for local_rank, replica in enumerate(here):
            places[replica] = RankPlace(len(places), local_rank, len(here), group_rank, len(members), visible)
    return [places[replica] for replica in range(len(hosts))]


def _joined(gpus: Sequence[str]) -> str:
    one_each = all(name and "," not in name for name in gpus) and len(set(gpus)) == len(gpus)
    return ",".join(gpus) if one_each else ""
