"""What a network is made of: bridges, cables, queues, rules, and a relay for what kernels without netem cannot do.

Commands act on the network that the calling thread is in.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

from tests.lab import namespaces

#: How long a frame may wait for its turn on a slow link; what does not fit is dropped, as in a router.
QUEUE_S = 0.1
#: How many frames wait for a relay at most: one that waits for a processor must not become a lossy link.
QUEUED_FRAMES = 10_000

_TUNSETIFF = 0x400454CA
_IFF_TAP_WITHOUT_INFO = 0x0002 | 0x1000
_RELAY = Path(__file__).with_name("relay.py")

#: Of a router between its interfaces "inside" and "outside": dialling goes out, answers come in.
NAT_RULES = """
table ip lab {
    chain forward {
        type filter hook forward priority filter; policy drop;
        iifname "inside" accept
        ct state established,related accept
    }
    chain input { type filter hook input priority filter; policy drop; }
    chain postrouting {
        type nat hook postrouting priority srcnat;
        oifname "outside" masquerade
    }
}
"""


class Relay:
    """A process that passes frames between two new TAP devices of this thread's network, late and not all of them."""

    def __init__(self, one: str, other: str) -> None:
        """Make the devices with these names, and start."""
        passed = [_tap(one), _tap(other), os.pidfd_open(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_RELAY), *map(str, passed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=passed,
            )
        finally:
            for descriptor in passed:
                os.close(descriptor)

    def set(self, *, delay_s: float, loss: float, seed: int) -> None:
        """Treat frames that come from now on in this way."""
        self._tell({"delay_s": delay_s, "loss": loss, "seed": seed})

    def counts(self) -> tuple[int, int]:
        """Frames that came so far, and those of them that were lost."""
        counts = self._tell({})
        return counts["frames"], counts["lost"]

    def close(self) -> None:
        """End it, and with it the devices."""
        self._process.kill()
        with self._process:
            pass

    def _tell(self, condition: dict[str, float]) -> dict[str, int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(condition) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def new_network() -> int:
    """A network namespace that nothing is in; it exists as long as this descriptor, or what is put into it."""

    def make() -> int:
        namespaces.leave_for_new(namespaces.NEW_NETWORK)
        hush()
        return namespaces.descriptor_of(None, "net")

    return namespaces.in_thread(make)


def hush() -> None:
    """Keep new interfaces from announcing themselves over IPv6, which is only noise in the counters."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")


def ip(*commands: str) -> None:
    """Carry out commands of `ip`, in one go."""
    _run(["ip", "-batch", "-"], "\n".join(commands))


def nft(rules: str) -> str:
    """Carry out commands of `nft`, or a rule set, and return what it says."""
    return _run(["nft", "-f", "-"], rules)


def limit_rate(device: str, rate_bit_s: float) -> None:
    """Let at most this rate out of a device."""
    burst = max(4096, int(rate_bit_s / 8 * 0.005))
    shape = f"rate {int(rate_bit_s)}bit burst {burst} latency {int(QUEUE_S * 1000)}ms"
    _run(["tc", "qdisc", "replace", "dev", device, "root", "tbf", *shape.split()], "")


def _tap(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP_WITHOUT_INFO))
    return descriptor


def _run(argv: list[str], text: str) -> str:
    done = subprocess.run(argv, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(argv)}` with {text.strip()!r} failed: {done.stderr.strip()}")
    return done.stdout
