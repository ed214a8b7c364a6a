"""What an owner does to what runs: `Actor` does it, `Actions` numbers and logs it, and always has an answer.

click ─▶ Actions ── in a thread ─▶ Actor ─▶ launcher
  notification ◀── ActionOutcome ◀── its sentence, or why it failed
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ropewalk.errors import RopewalkError
from ropewalk.escaping import escaped

logger = logging.getLogger(__name__)


class ActionFailed(RopewalkError):
    """An action was not done; the text says why, and what to do."""


class Actor(Protocol):
    """Acts on what runs. Every method may block for seconds, and may be called from several threads at once.

    Each raises `ActionFailed` where it cannot do what it is asked to: the launcher is gone or does not answer, or there
    is no such process. Its text is shown to the visitor.
    """

    def log_files(self, id: str) -> dict[str, Path]:
        """Return the files on this host that hold the output of processes, by name of the process.

        Args:
            id: of the view.
        """
        ...

    def stacks(self, id: str, process: str = "") -> dict[str, str]:
        """Return Python stacks, by name of the process; what does not answer has a sentence that says so.

        Args:
            id: of the view.
            process: its name; "" for all.
        """
        ...

    def act(self, id: str, action: str, process: str = "") -> str:
        """Do something to one process, or to the whole.

        Args:
            id: of the view.
            action: one of the view's `process_actions`, or of its `actions` if there is no process.
            process: its name; "" for the whole.

        Returns:
            A sentence that says what was done, such as "worker.3 (pid 4711) was killed; the pool starts another one".
        """
        ...

    def stop(self, id: str) -> str:
        """Stop the whole, and return a sentence that says how it ended.

        Args:
            id: of the view.
        """
        ...


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What became of an action.

    Attributes:
        done: whether it was done.
        text: a sentence with the number of the action, which is in the log too.
    """

    done: bool
    text: str


class NumberedActions:
    """Does what visitors ask for, in threads, numbers and logs it, and answers each request.

    Args:
        timeout_s: after this, the answer is that there was none; the action may still take effect.
    """

    def __init__(self, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s
        self._numbers = itertools.count(1)

    async def do(self, what: str, call: Callable[[], str]) -> ActionOutcome:
        """Do one thing.

        Args:
            what: in words, such as "kill worker.3 of es".
            call: does it, and returns what was done.
        """
        number = next(self._numbers)
        logger.info("action %d: %s", number, escaped(what))
        try:
            text = await asyncio.wait_for(asyncio.to_thread(call), self._timeout_s)
            outcome = ActionOutcome(True, f"Action {number}: {text or what}")
        except ActionFailed as error:
            outcome = ActionOutcome(False, f"Action {number}: could not {what}: {error}")
        except TimeoutError:
            outcome = ActionOutcome(
                False, f"Action {number}: {what}: no answer within {self._timeout_s:.0f} s; it may still take effect"
            )
        except Exception as error:  # a visitor who clicked must be told, whatever it was; the log has the traceback
            logger.exception("action %d failed", number)
            outcome = ActionOutcome(False, f"Action {number}: could not {what}: {type(error).__name__}: {error}")
        logger.info("%s", escaped(outcome.text))
        return outcome


class Actions(NumberedActions):
    """Does what visitors ask for to what runs.

    Args:
        actor: does it.
        timeout_s: as for `NumberedActions`.
    """

    def __init__(self, actor: Actor, timeout_s: float = 30.0) -> None:
        super().__init__(timeout_s)
        self.actor = actor


__all__ = ["ActionFailed", "ActionOutcome", "Actions", "Actor", "NumberedActions"]
