"""The kinds of nodes, one file each."""

from __future__ import annotations

from typing import Any

from ropewalk.program.node import Node
from ropewalk.program.nodes.cache import Cache
from ropewalk.program.nodes.colocate import Colocate
from ropewalk.program.nodes.pool_node import PoolNode
from ropewalk.program.nodes.rank_group import RankGroup
from ropewalk.program.nodes.service import Service
from ropewalk.program.nodes.worker import Worker

NODES: dict[str, type[Node[Any]]] = {
    node.kind: node for node in (Service, Worker, Cache, Colocate, RankGroup, PoolNode)
}
"""Every kind of node by its name."""
