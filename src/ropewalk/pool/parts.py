"""What a pool is made of: imported by the first pool, while the agent's interpreter starts (`interpreter_ahead.py`)."""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(globals())

with _lazy:
    from ropewalk.control.server import ControlServer as ControlServer
    from ropewalk.engines.resources import check_resources as check_resources
    from ropewalk.pool.callbacks import Callbacks as Callbacks
    from ropewalk.pool.dispatcher import Dispatcher as Dispatcher
    from ropewalk.pool.imap_feeders import ImapFeeders as ImapFeeders
    from ropewalk.pool.job_submitter import JobSubmitter as JobSubmitter
    from ropewalk.pool.messages import POOL as POOL
    from ropewalk.pool.packing import first_constant as first_constant
    from ropewalk.pool.status import WorkerHandle as WorkerHandle
    from ropewalk.pool.viewing import PoolTarget as PoolTarget
    from ropewalk.pool.worker_options import WorkerOptions as WorkerOptions
    from ropewalk.processes import bootstrap as bootstrap
    from ropewalk.processes.fleet import default_resources as default_resources
    from ropewalk.processes.owner import ProcessSpec as ProcessSpec
    from ropewalk.processes.owner import owner_numbers as owner_numbers
    from ropewalk.processes.shared_sessions import leased as leased
    from ropewalk.processes.shared_sessions import session_of as session_of
    from ropewalk.transport.serialization import dumps_code as dumps_code
