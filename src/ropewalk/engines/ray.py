"""The ray engine: jobs as actors in placement groups of a Ray cluster that is already running.

A job is one actor that starts the agent's command as a process of its own. The launcher must run on a node of the
cluster (its own machine may be one: `ray start --address=...`), because Ray's client connects to the Ray of its host.
Ray itself is imported in the driver only, a process beside the launcher; see `ray_driver`.

An attacker who can read Ray's traffic can run code in its cluster, because the token travels on it: if the network is
not trusted, switch Ray's own encryption on (RAY_USE_TLS=1). We never call `ray stop`: it ends every Ray of a machine.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from ropewalk.engines.engine import Engine, EngineFinding, JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.options import read_options
from ropewalk.engines.ray_address import NO_RAY
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError
from ropewalk.interpreters import import_environment, module_command
from ropewalk.near_names import check_choice

_ANSWER_S = 15.0
"""The timeout for an answer of the driver, also while a part of the cluster is cut off; it waits up to 3 s for actors.
"""
_END_S = 5.0
_PLACEMENTS = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True)
class RayOptions:
    """The options of the engine `ray`, with Ray's own names."""

    address: str = "auto"
    """`IP:PORT` of the head; `auto` takes RAY_ADDRESS or the Ray that runs on this machine."""
    namespace: str = "ropewalk"
    """The namespace of the actors' names; leftovers are looked for in it."""
    placement: str = "SPREAD"
    """How the jobs of one request are placed: SPREAD, PACK, STRICT_SPREAD or STRICT_PACK."""
    resources: dict[str, str] = field(default_factory=dict[str, str])
    """Custom resources that each job asks for, beside CPUs, GPUs and memory: `a=1,b=0.5`."""
    runtime_env: str = ""
    """Ray's runtime environment for the actors, as JSON: `{"pip": ["numpy"]}`."""
    python: str = ""
    """The interpreter on the nodes; the one that Ray's own workers run on if empty."""
    auth: str = "token"
    """`token` or `disabled`, as in the cluster: Ray detects a wrong mode only by failing."""
    token_path: str = ""
    """A file with the cluster's token; by default RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token."""
    connect_s: float = 60.0
    """The timeout for connecting to the cluster, in seconds."""
    silence_s: float = 30.0
    """Seconds without a request of the driver after which an actor ends its job: the launcher is cut off."""

    def __post_init__(self) -> None:
        """Refuse options that Ray would refuse later, or in a cluster's log.

        Raises:
            ValueError: an option has an invalid value.
        """
        check_choice("placement", self.placement, _PLACEMENTS)
        check_choice("auth", self.auth, ("token", "disabled"))
        for name in ("connect_s", "silence_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name):g}")
        for name, amount in self.resources.items():
            if name in ("CPU", "GPU", "memory"):
                raise ValueError(f"resources are custom ones; {name} follows from what a process asks for")
            with contextlib.suppress(ValueError):
                if float(amount) > 0:
                    continue
            raise ValueError(f"resources has {name}={amount}; an amount is a number above 0")
        if self.runtime_env:
            try:
                is_table = isinstance(json.loads(self.runtime_env), dict)
            except (ValueError, RecursionError):
                is_table = False
            if not is_table:
                raise ValueError(f"runtime_env is a JSON object, not {self.runtime_env!r}")


class RayEngine(Engine):
    """Passes requests to the driver; starts it at the first request and ends it in `close`, when no job is left."""

    name = "ray"
    reach = Reach.NETWORK

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.options = read_options(self.name, RayOptions, options or {})
        # A name without a folder: the actor puts the folder of its own interpreter first on the path.
        self.python = self.options.python or "python"
        self._driver: _DriverProcess | None = None

    def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        order = {
            "command": list(spec.command),
            "environment": dict(spec.environment),
            "stdin": base64.b64encode(spec.stdin).decode(),
            "run": run_id,
            "time_limit_s": spec.time_limit_s,
            "door": "",
        }
        for name, value in spec.environment.items():
            if "\0" in name + value:
                raise EngineError(f"the environment of a job cannot have a zero byte, as {name} has")
        asked = self._bundle(spec.resources)
        return self._ask(
            "submit",
            run=run_id,
            request=request_id,
            bundle=asked,
            actor=self._actor(spec.resources),
            orders=[order] * count,
            strategy=self.options.placement,
        )

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        states: dict[str, Any] = self._ask("poll", ids=list(ids))
        return {id: JobStatus(JobState(state), code, why) for id, (state, code, why) in states.items()}

    def cancel(self, ids: Sequence[str]) -> None:
        self._ask("cancel", ids=list(ids))

    def find(self, run_id: str) -> list[str]:
        return self.runs().get(run_id, [])

    def runs(self) -> dict[str, list[str]]:
        runs: dict[str, list[str]] = {}
        for run, id in self._ask("find"):
            runs.setdefault(run, []).append(id)
        return runs

    def logs(self, id: str) -> str:
        return self._ask("log", id=id)

    def render(self, spec: JobSpec) -> str:
        sent = {
            "placement_group": {"strategy": self.options.placement, "bundle": self._bundle(spec.resources)},
            "actor": {"namespace": self.options.namespace, "max_restarts": 0, **self._actor(spec.resources)},
            "runtime_env": json.loads(self.options.runtime_env or "{}"),
            "command": list(spec.command),
            "environment": dict(sorted(spec.environment.items())),
            "time_limit_s": spec.time_limit_s,
        }
        return json.dumps(sent, indent=2)

    def check(self) -> list[EngineFinding]:
        options = self.options
        try:
            version = self._start_driver().ray_version
            nodes: list[dict[str, Any]] = self._ask("nodes")
        except EngineError as error:
            return [EngineFinding("Ray cluster", False, str(error))]
        sizes = ", ".join(f"{node['ip']} ({node['resources'].get('CPU', 0):g} CPUs)" for node in nodes)
        tls = os.environ.get("RAY_USE_TLS") == "1"
        return [
            EngineFinding("Ray", True, f"version {version}, Python {sys.version.split()[0]}, as in the cluster"),
            EngineFinding("Ray cluster", bool(nodes), f"{len(nodes)} nodes: {sizes}"),
            EngineFinding(
                "Ray authentication",
                options.auth == "token",
                "by token"
                if options.auth == "token"
                else "disabled: whoever reaches the cluster can run code in it. Start it with RAY_AUTH_MODE=token",
            ),
            EngineFinding(
                "Ray encryption",
                True,
                "RAY_USE_TLS=1"
                if tls
                else "off: anyone who can read this network can take over the cluster. RAY_USE_TLS=1 switches it on",
            ),
        ]

    def per_job(self, process: Resources) -> int | None:
        """Return the number of processes that uses the nodes best: large for equal nodes, smaller for unequal ones."""
        bundle = self._bundle(process, with_custom=False)
        nodes: list[dict[str, Any]] = self._ask("nodes")
        fits = [min(int(node["resources"].get(name, 0) // n) for name, n in bundle.items()) for node in nodes]
        shares = sorted({fit for fit in fits if fit})
        if not shares:
            largest = {name: max((node["resources"].get(name, 0) for node in nodes), default=0) for name in bundle}
            raise EngineError(
                f"no node of the Ray cluster can hold a process that asks for {bundle} (CPUs, GPUs, bytes of memory); "
                f"its {len(nodes)} nodes have at most {largest}. Ask for less, or add a node"
            )

        def held(share: int) -> int:
            one_each = self.options.placement == "STRICT_SPREAD"
            return sum(min(fit // share, 1) if one_each else fit // share for fit in fits) * share

        return max(shares, key=lambda share: (held(share), share))

    def most_jobs(self) -> int | None:
        return max(1, len(self.hosts())) if self.options.placement == "STRICT_SPREAD" else None

    def hosts(self) -> list[str]:
        return [node["ip"] for node in self._ask("nodes")]

    def close(self) -> None:
        with self._lock:
            driver = self._driver
        if driver is None:
            return
        with contextlib.suppress(EngineError):
            if driver.is_alive and driver.ask({"do": "live"}):
                return  # the driver and its jobs end with the launcher, or in the next `close`
        with self._lock:
            self._driver = None
        driver.end()

    def _bundle(self, resources: Resources, *, with_custom: bool = True) -> dict[str, float]:
        bundle: dict[str, float] = {"CPU": resources.cpus}
        if resources.gpus:
            bundle["GPU"] = resources.gpus
        if resources.memory_bytes:
            bundle["memory"] = resources.memory_bytes
        if with_custom:
            bundle |= {name: float(amount) for name, amount in self.options.resources.items()}
        return bundle

    def _actor(self, resources: Resources) -> dict[str, Any]:
        """Return the resources that an actor requests of its place: all of them."""
        actor: dict[str, Any] = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        if resources.memory_bytes:
            actor["memory"] = resources.memory_bytes
        if self.options.resources:
            actor["resources"] = {name: float(amount) for name, amount in self.options.resources.items()}
        return actor

    def _ask(self, do: str, **facts: object) -> Any:
        question = {"do": do, **facts}
        try:
            return self._start_driver().ask(question)
        except _DriverEnded:
            if do == "submit":
                raise
            return self._start_driver().ask(question)  # the new driver has no jobs: they ended with the old one

    def _start_driver(self) -> _DriverProcess:
        with self._lock:
            if self._driver is not None and not self._driver.is_alive:
                self._driver.end()
                self._driver = None
            if self._driver is None:
                self._driver = _DriverProcess(self.options, self._popen)
            return self._driver

    def _popen(self, argv: Sequence[str], **popen_arguments: Any) -> subprocess.Popen[bytes]:
        """Start the driver; tests override this to start it on another machine."""
        return cast("subprocess.Popen[bytes]", subprocess.Popen(argv, **popen_arguments))


class _DriverEnded(EngineError):
    """The driver was killed, or failed; its jobs ended with it."""


class _DriverProcess:
    """The driver, and the pipes of its requests and answers."""

    def __init__(self, options: RayOptions, popen: Any) -> None:
        environment = {**os.environ, **import_environment(), **_environment(options)}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the driver
        self._heard, self._unsent = b"", bytearray()
        self._asking = threading.Lock()
        self._number = 0
        """The number of the last request, which its answer repeats."""
        # A session of its own: Ctrl-C is for the launcher, which ends the driver at the right time.
        self._process: subprocess.Popen[bytes] = popen(
            module_command(sys.executable, "ropewalk.engines.ray_driver"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin
        os.set_blocking(self._process.stdin.fileno(), False)  # a driver that is stopped reads nothing
        facts = {
            "address": options.address,
            "namespace": options.namespace,
            "runtime_env": json.loads(options.runtime_env or "{}"),
            "python": options.python,
            "silence_s": options.silence_s,
        }
        try:
            self.ray_version: str = self.ask(facts, options.connect_s)
        except BaseException as error:
            self.end(grace_s=0.0)
            if isinstance(error, EngineError):
                raise EngineError(
                    f"cannot connect to Ray at {options.address}: {_advice(str(error), options)}"
                ) from None
            raise

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: Mapping[str, object], patience_s: float = _ANSWER_S) -> Any:
        """Send one request and wait for the answer; several threads may ask, one after the other.

        An answer that nobody waits for any more, because Ctrl-C has ended that wait, is not taken for another one.

        Raises:
            EngineError: the request failed, the driver has ended, or it timed out and was ended.
        """
        assert self._process.stdin
        with self._asking:
            if self._process.stdin.closed:
                raise _DriverEnded("the driver of Ray has ended")
            deadline = time.monotonic() + patience_s
            self._number = number = self._number + 1
            self._unsent += json.dumps({**question, "number": number}).encode() + b"\n"
            with contextlib.suppress(BrokenPipeError):  # its last words are read then
                self._write(deadline, patience_s)
            while (reply := json.loads(self._read_line(deadline, patience_s)))["number"] != number:
                pass
        if "refused" in reply:
            raise EngineError(reply["refused"])
        return reply["answer"]

    def _write(self, deadline: float, patience_s: float) -> None:
        """Send what is left of requests, also of one during which Ctrl-C came."""
        assert self._process.stdin
        orders = self._process.stdin.fileno()
        while self._unsent:
            self._wait_for(orders, select.POLLOUT, deadline, patience_s)
            with contextlib.suppress(BlockingIOError):
                del self._unsent[: os.write(orders, self._unsent)]

    def _wait_for(self, fd: int, event: int, deadline: float, patience_s: float) -> None:
        poller = select.poll()  # `select.select` takes no descriptor above 1023
        poller.register(fd, event)
        if not poller.poll(1000 * max(0.0, deadline - time.monotonic())):
            self.end(grace_s=0.0)
            raise EngineError(f"Ray did not answer within {patience_s:g} s")

    def _read_line(self, deadline: float, patience_s: float) -> bytes:
        assert self._process.stdout
        output = self._process.stdout.fileno()
        while b"\n" not in self._heard:
            self._wait_for(output, select.POLLIN, deadline, patience_s)
            data = os.read(output, 1 << 20)
            if not data:
                last_words = self._last_words()
                self.end(grace_s=0.0)
                raise _DriverEnded(f"the driver of Ray has ended: {last_words}")
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-1000:] or "it said nothing"

    def end(self, grace_s: float = _END_S) -> None:
        """End the driver, by force after `grace_s` seconds. May be called twice."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def _environment(options: RayOptions) -> dict[str, str]:
    """Return Ray's own settings; every process needs the mode, because Ray behaves differently without a message."""
    environment = {"RAY_AUTH_MODE": options.auth, "RAY_USAGE_STATS_ENABLED": "0"}
    if options.auth == "token":
        if options.token_path:
            environment["RAY_AUTH_TOKEN_PATH"] = os.path.expanduser(options.token_path)
        elif not any(os.environ.get(name) for name in _TOKENS) and not Path("~/.ray/auth_token").expanduser().exists():
            raise EngineError(
                "there is no token for the Ray cluster: set token_path, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or put "
                "it into ~/.ray/auth_token; or set auth=disabled if the cluster was started with RAY_AUTH_MODE=disabled"
            )
    return environment


def _advice(words: str, options: RayOptions) -> str:
    """Return Ray's message with advice."""
    if words.startswith(NO_RAY):
        return words
    low = words.lower()
    if "no module named 'ray'" in low:
        return "the package ray is not installed; pip install 'ropewalk[ray]', with the version of the cluster"
    if "version mismatch" in low:
        return f"{words} Install the Python and the ray of the cluster here"
    return (
        f"{words}; is the address right, and this machine a node of that cluster? Ray's client needs a Ray on its own "
        "machine: `ray start --address=...` adds this one, or run the launcher on a node. The option auth is "
        f"{options.auth}, and must be as the cluster was started, with the same token and RAY_USE_TLS"
    )
