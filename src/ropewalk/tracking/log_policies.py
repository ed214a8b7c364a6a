"""Log policies: what a line of output says about a run, and what follows from it.

LogPolicy(r"CUDA error: uncorrectable ECC", label="bad-gpu", exclude_host=True)
LogPolicy(r"CUDA out of memory", label="oom", no_retry=True)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """A pattern in the output of a run's process, and what is done when it appears.

    Attributes:
        pattern: a regular expression, searched in each line.
        label: the run gets this label; None: none.
        no_retry: the run is not restarted after a failure.
        exclude_host: the run is not started on this host again.
    """

    pattern: str
    label: str | None = None
    no_retry: bool = False
    exclude_host: bool = False
    _compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_compiled", re.compile(self.pattern))
        except re.error as error:
            raise ValueError(
                f"the pattern {self.pattern!r} of a log policy is not a regular expression: {error}"
            ) from None
        if self.label is None and not self.no_retry and not self.exclude_host:
            raise ValueError(
                f"the log policy for {self.pattern!r} does nothing; give it label=, no_retry=True or exclude_host=True"
            )

    def matches(self, line: str) -> bool:
        """Whether the pattern is in a line."""
        return self._compiled.search(line) is not None


@dataclass(frozen=True, slots=True)
class LogFindings:
    """What policies say of some output.

    Attributes:
        labels: labels for the run, each once, in the order of the policies.
        no_retry: whether the run must not be restarted.
        exclude_host: whether it must not be started on that host again.
        lines: the first line that each matching policy has found, by its pattern.
    """

    labels: tuple[str, ...] = ()
    no_retry: bool = False
    exclude_host: bool = False
    lines: tuple[tuple[str, str], ...] = ()


def findings(policies: Sequence[LogPolicy], lines: Iterable[str]) -> LogFindings:
    """Look for the patterns of policies in output.

    Args:
        policies: the policies.
        lines: the lines of the output.
    """
    first: dict[int, str] = {}
    for line in lines:
        for index, policy in enumerate(policies):
            if index not in first and policy.matches(line):
                first[index] = line
    found = [policy for index, policy in enumerate(policies) if index in first]
    return LogFindings(
        labels=tuple(dict.fromkeys(policy.label for policy in found if policy.label is not None)),
        no_retry=any(policy.no_retry for policy in found),
        exclude_host=any(policy.exclude_host for policy in found),
        lines=tuple((policies[index].pattern, line) for index, line in sorted(first.items())),
    )


__all__ = ["LogFindings", "LogPolicy", "findings"]
