"""The local engine alone; what all engines promise is in `test_conformance`."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap


def test_ending_a_job_at_exit_does_not_hide_that_ctrl_c_ended_the_program() -> None:
    # It once imported psutil there, whose named tuples use eval, which makes Python forget it: the exit code was 1, and
    # a loop of a shell went on with the next program.
    script = """
        import atexit, os, signal, time
        from ropewalk.engines.engine import JobSpec
        from ropewalk.engines.local import LocalEngine

        engine = LocalEngine()
        job = JobSpec(["sleep", "60"])
        atexit.register(engine.cancel, engine.submit(job, 1, "run", "request"))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where these tests run with SIGINT ignored
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    """
    done = subprocess.run(  # our own interpreter
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert done.returncode == -signal.SIGINT
