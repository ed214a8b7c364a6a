"""Exchange gradients between replicas: all-reduce, parameter servers, and compressors that send only what matters.

    attach(ddp_model, GDSEC(c=100, beta=0.01))                  any DistributedDataParallel model
    DistributedOptimizer(optimizer, AllReduce())                any optimizer, Horovod's interface
    data_parallel(train, workers=4, exchange="gd_sec")          a `Program`: on any engine, elastic

    gradients ─▶ buckets ─▶ compressor ─▶ all-reduce | all-gather | parameter server ─▶ decoder ─▶ mean ─▶ optimizer

Needs torch. numba makes the selection of components several times faster (`pip install 'ropewalk[exchange]'`).
`presets` has the methods that GD-SEC is compared with; `federated` simulates thousands of workers.
"""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(globals(), {"torch": "exchange", "numpy": "exchange"})

with _lazy:
    from ropewalk.exchange import federated as federated
    from ropewalk.exchange import presets as presets
    from ropewalk.exchange.all_gather import AllGather as AllGather
    from ropewalk.exchange.all_reduce import AllReduce as AllReduce
    from ropewalk.exchange.broadcasting import broadcast_optimizer_state as broadcast_optimizer_state
    from ropewalk.exchange.broadcasting import broadcast_parameters as broadcast_parameters
    from ropewalk.exchange.compressors import GDSEC as GDSEC
    from ropewalk.exchange.compressors import Censored as Censored
    from ropewalk.exchange.compressors import Compressor as Compressor
    from ropewalk.exchange.compressors import ErrorFeedback as ErrorFeedback
    from ropewalk.exchange.compressors import Half as Half
    from ropewalk.exchange.compressors import LowRank as LowRank
    from ropewalk.exchange.compressors import NoCompression as NoCompression
    from ropewalk.exchange.compressors import Quantized as Quantized
    from ropewalk.exchange.compressors import RandomK as RandomK
    from ropewalk.exchange.compressors import Sign as Sign
    from ropewalk.exchange.compressors import TopK as TopK
    from ropewalk.exchange.compressors import make_compressor as make_compressor
    from ropewalk.exchange.compressors import register_compressor as register_compressor
    from ropewalk.exchange.ddp_hook import CommHookHandle as CommHookHandle
    from ropewalk.exchange.ddp_hook import attach as attach
    from ropewalk.exchange.distributed_optimizer import DistributedOptimizer as DistributedOptimizer
    from ropewalk.exchange.elastic.coordinator import ExchangeTimeouts as ExchangeTimeouts
    from ropewalk.exchange.elastic.data_parallel import data_parallel as data_parallel
    from ropewalk.exchange.elastic.trainer import ElasticTrainer as ElasticTrainer
    from ropewalk.exchange.exchange import Exchange as Exchange
    from ropewalk.exchange.exchange import ExchangeReport as ExchangeReport
    from ropewalk.exchange.exchange import StepRecord as StepRecord
    from ropewalk.exchange.exchange_maker import make_exchange as make_exchange
    from ropewalk.exchange.groups.group import Group as Group
    from ropewalk.exchange.groups.link_emulation import LinkEmulation as LinkEmulation
    from ropewalk.exchange.groups.link_group import LinkGroup as LinkGroup
    from ropewalk.exchange.groups.member import GroupMember as GroupMember
    from ropewalk.exchange.groups.thread_group import ThreadGroup as ThreadGroup
    from ropewalk.exchange.groups.thread_group import run_members as run_members
    from ropewalk.exchange.groups.torch_group import TorchGroup as TorchGroup
    from ropewalk.exchange.parameter_server.parameter_server import ParameterServer as ParameterServer
    from ropewalk.exchange.parameter_server.server_sgd import ServerSGD as ServerSGD
    from ropewalk.exchange.parameter_server.service import ParameterShard as ParameterShard
    from ropewalk.exchange.reporting import print_report as print_report
    from ropewalk.exchange.reporting import report_json as report_json
    from ropewalk.exchange.reporting import report_table as report_table
    from ropewalk.exchange.stall_detector import StallDetector as StallDetector
    from ropewalk.exchange.timeline import ExchangeTimeline as ExchangeTimeline
    from ropewalk.exchange.timeline import merge_timelines as merge_timelines
