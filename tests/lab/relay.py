"""Passes Ethernet frames between two TAP devices, late and not all of them: delay and loss without `tc netem`.

Started as `python -I -S relay.py TAP TAP PIDFD` with open descriptors; the last one
becomes readable when the process of the tests has ended. Each line of its input is a
JSON object with the condition from now on, `{"delay_s": 0.02, "loss": 0.02, "seed": 1}`;
each line is answered with the counts so far.
"""

import collections
import contextlib
import json
import os
import random
import select
import sys
import time

#: Kernels hand frames to a TAP one at a time and cut to the MTU, for it has no offloads.
FRAME_BYTES = 65536


class Direction:
    """Frames on their way from one device to the other."""

    def __init__(self, source, target):
        self.source = source
        self.target = target
        self.waiting = collections.deque()  # (due, frame), oldest first
        self.num_frames = 0
        self.num_lost = 0

    def take(self, now, delay_s, loss, dice):
        with contextlib.suppress(BlockingIOError):
            while True:
                frame = os.read(self.source, FRAME_BYTES)
                self.num_frames += 1
                if dice.random() < loss:
                    self.num_lost += 1
                else:
                    # Never before an older one: a shorter delay from now on does not change the order.
                    due = now + delay_s
                    self.waiting.append((max(due, self.waiting[-1][0]) if self.waiting else due, frame))

    def deliver(self, now):
        while self.waiting and self.waiting[0][0] <= now:
            try:
                os.write(self.target, self.waiting.popleft()[1])
            except OSError:  # the device is down or full; then the frame is lost, as on a wire
                self.num_lost += 1


def main():
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # a wire does not wait for a processor
    one, other, tests = map(int, sys.argv[1:])
    for tap in (one, other):
        os.set_blocking(tap, False)
    directions = {one: Direction(one, other), other: Direction(other, one)}
    delay_s, loss, dice = 0.0, 0.0, random.Random(0)
    while True:
        dues = [direction.waiting[0][0] for direction in directions.values() if direction.waiting]
        timeout_s = max(0.0, min(dues) - time.monotonic()) if dues else None
        ready, _, _ = select.select([0, tests, one, other], [], [], timeout_s)
        if tests in ready:
            return
        if 0 in ready:
            line = sys.stdin.readline()
            if not line:
                return
            wanted = json.loads(line)
            if wanted:
                delay_s, loss, dice = wanted["delay_s"], wanted["loss"], random.Random(wanted["seed"])
            counts = {
                "frames": sum(direction.num_frames for direction in directions.values()),
                "lost": sum(direction.num_lost for direction in directions.values()),
            }
            print(json.dumps(counts), flush=True)
        now = time.monotonic()
        for tap in (one, other):
            if tap in ready:
                directions[tap].take(now, delay_s, loss, dice)
        for direction in directions.values():
            direction.deliver(now)


if __name__ == "__main__":
    main()
