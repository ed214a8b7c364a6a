"""Functions of searches: small, and with what can go wrong."""

from __future__ import annotations

import os
import platform
import signal
import time
from pathlib import Path
from typing import Any


def climb(run: Any, x: float) -> None:
    """A score that approaches x; goes on from its checkpoint, whose contents must be those of its step."""
    restored = run.restore()
    total = 0.0 if restored is None else restored.state["total"]
    if restored is not None:
        assert restored.state["step"] == restored.step, restored
    for step in run.steps(9):
        total += x * 0.5**step
        run.log(score=total)
        run.checkpoint({"total": total, "step": step})


def slow_climb(run: Any, x: float) -> None:
    """As `climb`, a twentieth of a second for each step."""
    restored = run.restore()
    total = 0.0 if restored is None else restored.state["total"]
    for step in run.steps(9):
        time.sleep(0.05)
        total += x * 0.5**step
        run.log(score=total)
        run.checkpoint({"total": total, "step": step})


def endless_climb(run: Any, x: float) -> None:
    """As `slow_climb`, until it is asked to stop; to pause it needs a checkpoint."""
    for step in run.steps(1_000_000):
        time.sleep(0.05)
        run.log(score=x)
        run.checkpoint({"step": step})


def ends_or_goes_on(run: Any, x: float) -> None:
    """Ends at once, or goes on until it is asked to stop."""
    if x:
        endless_climb(run, x)
    run.log(score=x)


def value(run: Any, x: float) -> float:
    """Logs nothing, and returns its score."""
    return x


def two_objectives(run: Any, x: float) -> dict[str, float]:
    """Two scores that pull in different directions."""
    return {"gain": x, "cost": x * x}


def validated(run: Any, x: float) -> None:
    """The metric is in a group."""
    for step in run.steps(2):
        run.log(loss=1.0)
        run.log(loss=x / step, group="validation")


def nested(run: Any, model: dict[str, Any], seed: int) -> float:
    """Takes what is nested as it is written."""
    return model["width"] + seed


def raises(run: Any, x: float) -> None:
    """Fails before it has reported anything."""
    raise FileNotFoundError(f"no data for {x}")


def raises_or_waits(run: Any, x: float) -> None:
    """Waits for ever, or fails."""
    while x == 0.9:
        time.sleep(0.05)
    raises(run, x)


def raises_once(run: Any, x: float, folder: str) -> None:
    """Fails in its second step, at the first attempt."""
    restored = run.restore()
    for step in run.steps(3):
        run.log(score=x + step)
        run.checkpoint({"step": step})
        if step == 2 and restored is None:
            raise ValueError("once")


def logs_another_name(run: Any, x: float) -> None:
    """Logs everything but the metric."""
    run.log(loss=x, epoch=1)


def is_nan(run: Any, x: float) -> float:
    """NaN for half of the configurations."""
    return float("nan") if x < 0.5 else x


def kills_itself(run: Any, x: float) -> None:
    """Dies in its third step, twice."""
    restored = run.restore()
    begin = 0 if restored is None else int(restored.step)
    print(f"begins after {begin}")
    for step in run.steps(6):
        run.log(score=x + step)
        run.checkpoint({"step": step})
        if step == begin + 3 and begin < 6:
            os.kill(os.getpid(), signal.SIGKILL)


def says_nothing(run: Any, x: float) -> None:
    """Never reports, when x is below a half."""
    while x < 0.5:
        time.sleep(0.05)
    run.log(score=x)


def counts_attempts(run: Any, x: float, folder: str) -> None:
    """Writes a line for each step that it computes; slow while a file tells it to be, so that it can be interrupted."""
    run.restore()
    for step in run.steps(8):
        time.sleep(2 if (Path(folder) / "slowly").exists() else 0.03)
        with (Path(folder) / run.name).open("a") as file:
            file.write(f"{step}\n")
        run.log(score=x * step)
        run.checkpoint({"step": step})


def suggests(run: Any) -> None:
    """Asks for what it needs, and fails once after that."""
    kind = run.suggest_categorical("kind", ["line", "square"])
    x = run.suggest_float("x", 0.0, 1.0)
    power = run.suggest_int("power", 2, 4) if kind == "square" else 1
    restored = run.restore()
    for _ in run.steps(2):
        run.log(score=x**power)
        run.checkpoint({"x": x})
        if restored is None:
            raise ValueError("once")
    assert restored is not None and restored.state["x"] == x


def logs_late(run: Any, x: float) -> None:
    """Measures its score only at the end."""
    run.restore()
    for step in run.steps(9):
        run.checkpoint({"step": step})
        run.log(loss=1.0)
    run.log(score=x)


# --- members of a population ------------------------------------------------------------------------------------------


def adds_up(run: Any, x: float) -> None:
    """The sum of x over all steps, with a state as a trial has it."""
    restored = run.restore()
    total = 0.0 if restored is None else restored.state["total"]
    if restored is not None:
        assert restored.state["step"] == restored.step, restored
    for step in run.steps(4):
        total += x
        run.log(score=total)
        run.checkpoint(lambda: {"total": total, "step": step})  # noqa: B023  # called at once, or never


def rises_and_falls(run: Any, x: float) -> None:
    """The sum of x over two steps; the next two lead down again."""
    restored = run.restore()
    score = 0.0 if restored is None else restored.state["score"]
    for step in run.steps(4):
        score += x if step <= 2 else -2 * x
        run.log(score=score)
        run.checkpoint({"score": score})


def adds_up_after_others(run: Any, x: float, folder: str) -> None:
    """As `adds_up`; whoever has 0.1 waits until another one has ended."""
    while x == 0.1 and not (Path(folder) / "ended").exists():
        time.sleep(0.01)
    adds_up(run, x)
    if run.step == 4:
        (Path(folder) / "ended").touch()


def returns_its_sum(run: Any, x: float) -> float:
    """As `adds_up`, with the score as the result."""
    restored = run.restore()
    total = 0.0 if restored is None else restored.state
    for _ in run.steps():
        total += x
        run.checkpoint(total)
    return total


def adds_up_after_a_failure(run: Any, x: float) -> None:
    """As `adds_up`; the second attempt fails."""
    if run.attempt == 2:
        raise ValueError("once")
    adds_up(run, x)


def adds_up_slowly(run: Any, x: float, folder: str) -> None:
    """As `adds_up`, six steps; writes a line for each interval."""
    restored = run.restore()
    total = 0.0 if restored is None else restored.state["total"]
    with (Path(folder) / "trained").open("a") as file:
        file.write(f"{run.trial}\n")
    for _ in run.steps():
        time.sleep(0.03)
        total += x
        run.log(score=total)
        run.checkpoint({"total": total})


def counts_too_far(run: Any, x: float) -> None:
    """Ends before the population does."""
    for _ in run.steps(3):
        run.log(score=x)
        run.checkpoint({})


def takes_anything(run: Any, **hyperparameters: Any) -> None:
    """Takes what any space has."""


def waits_for_a_file(run: Any, file: str) -> None:
    """The first trial waits for a file, the others for ever; each asks in every step."""
    for _ in run.steps():
        if run.trial == 0 and Path(file).parent.joinpath("go").exists():
            return
        time.sleep(0.01)


def fails_on_its_first_host(run: Any, x: float, folder: str) -> float:
    """Fails wherever it is begun first, and only there."""
    here, bad = platform.node(), Path(folder, "bad")
    if not bad.exists():
        bad.write_text(here)
    if bad.read_text() == here:
        raise RuntimeError("CUDA error: uncorrectable ECC error")
    return x


def asks(run: Any) -> float:
    """Asks for what it needs, which depends on what it gets."""
    kind = run.suggest_categorical("kind", ["line", "square"])
    x = run.suggest_float("x", 0.5, 1.0)
    return x ** (run.suggest_int("power", 2, 4) if kind == "square" else 1)
