"""Tracing: the graph of a model, and programs for pieces of it.

Nothing is imported before it is used: modules beside these are small, and the tracer needs sympy.
"""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(globals(), {"torch": "torch"})

with _lazy:
    from ropewalk.pipeline.tracing.marks import cut_here as cut_here
    from ropewalk.pipeline.tracing.model_graph import ModelGraph as ModelGraph
    from ropewalk.pipeline.tracing.model_graph import TracedOperator as TracedOperator
    from ropewalk.pipeline.tracing.stage_program import BatchNormCall as BatchNormCall
    from ropewalk.pipeline.tracing.stage_program import StageProgram as StageProgram
    from ropewalk.pipeline.tracing.tracer import trace as trace
