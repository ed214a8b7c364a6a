"""Gradients between replicas: all-reduce, parameter servers, and compressors that send only what matters.

    attach(ddp_model, GDSEC(c=100, beta=0.01))                  any DistributedDataParallel model
    DistributedOptimizer(optimizer, AllReduce())                any optimizer, Horovod's shape
    data_parallel(train, workers=4, exchange="gd_sec")          a `Program`: any engine, elastic

    gradients ─▶ buckets ─▶ compressor ─▶ all-reduce | all-gather | parameter server ─▶ decoder ─▶ mean ─▶ optimizer

Needs torch; numba makes finding what matters several times faster (`pip install 'ropewalk[exchange]'`). `presets` has
the methods that GD-SEC is compared with, `federated` thousands of simulated workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy_names import lazy_names

if TYPE_CHECKING:
    from ropewalk.exchange import federated, presets
    from ropewalk.exchange.all_gather import AllGather
    from ropewalk.exchange.all_reduce import AllReduce
    from ropewalk.exchange.broadcasting import broadcast_optimizer_state, broadcast_parameters
    from ropewalk.exchange.compressors import (
        GDSEC,
        Censored,
        Compressor,
        ErrorFeedback,
        Half,
        LowRank,
        NoCompression,
        Quantized,
        RandomK,
        Sign,
        TopK,
        make_compressor,
        register_compressor,
    )
    from ropewalk.exchange.ddp_hook import Attached, attach
    from ropewalk.exchange.distributed_optimizer import DistributedOptimizer
    from ropewalk.exchange.elastic.coordinator import Patience
    from ropewalk.exchange.elastic.data_parallel import data_parallel
    from ropewalk.exchange.elastic.trainer import ElasticTrainer
    from ropewalk.exchange.exchange import Exchange, Report, StepRecord
    from ropewalk.exchange.exchange_for import exchange_for
    from ropewalk.exchange.groups.group import Group
    from ropewalk.exchange.groups.link_group import LinkGroup
    from ropewalk.exchange.groups.member import Member
    from ropewalk.exchange.groups.shaping import Shaping
    from ropewalk.exchange.groups.thread_group import ThreadGroup, run_members
    from ropewalk.exchange.groups.torch_group import TorchGroup
    from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
    from ropewalk.exchange.parameter_server.server_sgd import ServerSGD
    from ropewalk.exchange.parameter_server.service import ParameterShard
    from ropewalk.exchange.reporting import print_report, report_json, report_table
    from ropewalk.exchange.stalls import Stalls
    from ropewalk.exchange.timeline import Timeline, merge_timelines

_HOMES = {
    "AllGather": "all_gather",
    "AllReduce": "all_reduce",
    "broadcast_optimizer_state": "broadcasting",
    "broadcast_parameters": "broadcasting",
    "Censored": "compressors",
    "Compressor": "compressors",
    "ErrorFeedback": "compressors",
    "GDSEC": "compressors",
    "Half": "compressors",
    "LowRank": "compressors",
    "NoCompression": "compressors",
    "Quantized": "compressors",
    "RandomK": "compressors",
    "Sign": "compressors",
    "TopK": "compressors",
    "make_compressor": "compressors",
    "register_compressor": "compressors",
    "Attached": "ddp_hook",
    "attach": "ddp_hook",
    "DistributedOptimizer": "distributed_optimizer",
    "Patience": "elastic.coordinator",
    "data_parallel": "elastic.data_parallel",
    "ElasticTrainer": "elastic.trainer",
    "Exchange": "exchange",
    "Report": "exchange",
    "StepRecord": "exchange",
    "exchange_for": "exchange_for",
    "Group": "groups.group",
    "LinkGroup": "groups.link_group",
    "Member": "groups.member",
    "Shaping": "groups.shaping",
    "ThreadGroup": "groups.thread_group",
    "run_members": "groups.thread_group",
    "TorchGroup": "groups.torch_group",
    "ParameterServer": "parameter_server.parameter_server",
    "ServerSGD": "parameter_server.server_sgd",
    "ParameterShard": "parameter_server.service",
    "print_report": "reporting",
    "report_json": "reporting",
    "report_table": "reporting",
    "Stalls": "stalls",
    "Timeline": "timeline",
    "merge_timelines": "timeline",
}
_SUBMODULES = ("federated", "presets")

__all__ = [
    "GDSEC",
    "AllGather",
    "AllReduce",
    "Attached",
    "Censored",
    "Compressor",
    "DistributedOptimizer",
    "ElasticTrainer",
    "ErrorFeedback",
    "Exchange",
    "Group",
    "Half",
    "LinkGroup",
    "LowRank",
    "Member",
    "NoCompression",
    "ParameterServer",
    "ParameterShard",
    "Patience",
    "Quantized",
    "RandomK",
    "Report",
    "ServerSGD",
    "Shaping",
    "Sign",
    "Stalls",
    "StepRecord",
    "ThreadGroup",
    "Timeline",
    "TopK",
    "TorchGroup",
    "attach",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "data_parallel",
    "exchange_for",
    "federated",
    "make_compressor",
    "merge_timelines",
    "presets",
    "print_report",
    "register_compressor",
    "report_json",
    "report_table",
    "run_members",
]

if not TYPE_CHECKING:  # a checker that saw it would take each misspelt name for one of any type
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, {"torch": "exchange", "numpy": "exchange"}, _SUBMODULES)
