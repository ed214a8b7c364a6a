"""Losses and targets, as pure functions of tensors.

T is the number of steps, B the number of environments or sequences, A the number of actions. Tensors of steps are
time-major, [T, B]; values of observations are [T+1, B], as blocks have one observation more than steps.

Steps where `mask` is False only began an episode (`ropewalk.rl.VectorEnvironment`): they stop every recursion
and count in no mean, whatever numbers are in them. The observation of such a step is the last one of the episode that
ended, so its value is what a truncated episode is bootstrapped from. Targets have no gradient.
"""
