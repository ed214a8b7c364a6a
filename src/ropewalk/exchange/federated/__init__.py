"""Thousands of workers with data of their own, simulated on one machine."""

from ropewalk.exchange.federated.problems import LinearRegression as LinearRegression
from ropewalk.exchange.federated.problems import LogisticRegression as LogisticRegression
from ropewalk.exchange.federated.problems import Problem as Problem
from ropewalk.exchange.federated.problems import Shards as Shards
from ropewalk.exchange.federated.problems import SoftmaxRegression as SoftmaxRegression
from ropewalk.exchange.federated.problems import shard as shard
from ropewalk.exchange.federated.simulation import FederatedRun as FederatedRun
from ropewalk.exchange.federated.simulation import Federation as Federation
from ropewalk.exchange.federated.simulation import RoundRecord as RoundRecord

__all__ = [
    "FederatedRun",
    "Federation",
    "LinearRegression",
    "LogisticRegression",
    "Problem",
    "RoundRecord",
    "Shards",
    "SoftmaxRegression",
    "shard",
]
