"""ZB-H2: twice as many forwards ahead as ZB-H1, and almost no idle time (Qi et al., 2401.10241, section 2.2).

    worker 0 | F0 F1 F2 I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4 ..
    worker 1 | .. F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4

Stage s of p runs 2(p-s)-1 forwards before its first I, and W 2s micro-batches after I, so
that every stage holds 2p-1. Workers end at different times, so the schedule allows no barrier
before the step. Idle (p-1)(t_F + t_B - 2 t_W), if W takes no longer than F and no longer than I.
"""

from __future__ import annotations

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules.zb_h1 import ZeroBubbleH1


class ZeroBubbleH2(ZeroBubbleH1):
    """Like zb_h1 with twice the memory; has no idle time if F, I and W take equally long."""

    name = "zb_h2"
    refuses_norm = True
    _slope = 2

    def check(self, plan: Plan) -> None:
        super().check(plan)
        num_stages, replicas = len(plan.stages), plan.stages[0].replicas
        needed = (2 * num_stages - 1) * replicas
        if plan.micro_batches < needed:
            raise ScheduleInvalid(
                f"zb_h2 needs at least 2p - 1 = {2 * num_stages - 1} micro-batches for each of {replicas} replica(s) "
                f"of its {num_stages} stages, and the plan has {plan.micro_batches}; use micro_batches >= "
                f"{needed}, or zb_h1, which takes any number"
            )
