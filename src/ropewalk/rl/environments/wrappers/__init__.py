"""Wrappers that Gymnasium lacks; for everything else, use its own (below, names without a module are Gymnasium's).

A wrapper is applied by the settings of an environment: `rl.Gymnasium(id, wrappers=(...))`, the innermost first; one
with arguments is a `functools.partial`.

| wanted | use |
|---|---|
| last action and last reward beside the observation | `rl.ObservationActionReward` |
| FIRE after a reset, in Atari games that wait for it | `rl.FireReset` |
| Atari: no-op starts, skipped frames, 84x84, grey | `AtariPreprocessing`, on a game made with `frameskip=1` |
| a life is an episode | `AtariPreprocessing(terminal_on_life_loss=True)`; each begins a new game |
| sticky actions | the game's argument `repeat_action_probability`, or `StickyAction` |
| stacked frames | `FrameStackObservation` |
| action repeat | `RepeatAction`; `MaxAndSkipObservation` for frames that flicker |
| canonical action range | `RescaleAction`, to -1 and 1; actions are clipped to their bounds in any case |
| step limit | the argument `max_episode_steps`, or `TimeLimit` |
| single precision | nothing: observations of float64 become float32 |
| sign of the reward | `TransformReward` with `numpy.sign` |
| scaled rewards, normalised observations | not wrappers: their statistics belong to the learner's weights |
| scores and lengths of episodes | nothing: blocks have them |
| images of MiniGrid | `minigrid.wrappers.ImgObsWrapper`, on `rl.Gymnasium("minigrid:MiniGrid-MemoryS7-v0", ...)` |
| MinAtar | nothing: `lambda seed: TimeLimit(minatar.gym.BaseEnv("breakout"), 5_000)`; its ids are not registered |
| EnvPool | nothing: `lambda seed: envpool.make_gymnasium(id, num_envs=8, seed=seed)`, with as many as `agent.envs` |
| another kind of space | `FlattenObservation`, `TransformObservation`, `TransformAction` |
| video | `RecordVideo`, in an environment of an evaluator |
"""
