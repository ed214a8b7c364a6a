"""The parts of the partitioner `exact`: what it may choose from, what that costs, and how the best is found.

shapes ──▶ placement ──┐                                     ┌──▶ the best (family_search)
down_sets ▶ candidates ┴▶ stage_costs ──▶ chains ────────────┼──▶ the best of each form (ranking)
  ▲ too many: blocks, contraction                            └──▶ why there is none (refusal)
the bound: relaxation, relaxed_candidates     devices that run several stages: grouped
what the best must not be worse than: simple_plans
"""
