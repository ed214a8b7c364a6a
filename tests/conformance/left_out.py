"""CPython's tests that are not run against Ropewalk: each class or test by name, with the reason."""

from __future__ import annotations

_INSIDE = "tests the inside of multiprocessing, which Ropewalk leaves as it is: "
_START_METHOD = "tests a choice between start methods; Ropewalk has one, and it is not fork"
_PUT = "put pickles at once and raises, where multiprocessing pickles in a thread, which prints the error"
_DESCRIPTOR = "passes a file descriptor to another process, which may be on another host"

LEFT_OUT: dict[str, str] = {
    "MiscTestCase": _INSIDE + "its list of names and its import",
    "OtherTest": _INSIDE + "the challenges of its connections",
    "SemLockTests": _INSIDE + "its semaphores",
    "TestFlags": "starts Python with -S, which hides installed packages, and with them Ropewalk",
    "TestIgnoreEINTR.test_ignore": "expects 16 MiB to be too much for a pipe; ours sends that as one memory file",
    "TestInternalDecorators": _INSIDE + "its own test helpers",
    "TestInvalidHandle": _INSIDE + "a Connection made of a number",
    "TestNoForkBomb": "expects an error without `if __name__ == '__main__'`, which Ropewalk does not need",
    "TestPoolNotLeakOnFailure": _INSIDE + "how its Pool asks a context for processes",
    "TestResourceTracker": _INSIDE + "its resource tracker",
    "TestSimpleQueue.test_closed": _INSIDE + "the two connections of its SimpleQueue",
    "TestStartMethod.test_context": _START_METHOD,
    "TestStartMethod.test_get_all": _START_METHOD,
    "TestStartMethod.test_mixed_startmethod": _START_METHOD,
    "TestStartMethod.test_set_get": _START_METHOD,
    "WithManagerTestPool.test_make_pool": "expects a RemoteError; here what a constructor raises keeps its type",
    "WithProcessesTestConnection.test_fd_transfer": _DESCRIPTOR,
    "WithProcessesTestConnection.test_large_fd_transfer": _DESCRIPTOR,
    "WithProcessesTestConnection.test_missing_fd_transfer": _DESCRIPTOR,
    "WithProcessesTestFinalize": _INSIDE + "multiprocessing.util",
    "WithProcessesTestHeap": _INSIDE + "multiprocessing.heap",
    "WithProcessesTestPicklingConnections.test_pickling": _DESCRIPTOR + ": an accepted connection, and a socket",
    "WithProcessesTestProcess.test_parent_process": "a process shall outlive its parent and tell of its death; with "
    "Ropewalk none outlives the one that started it",
    "WithProcessesTestQueue.test_queue_feeder_donot_stop_onexc": _PUT,
    "WithProcessesTestQueue.test_queue_feeder_on_queue_feeder_error": _PUT,
    "_TestImportStar": _INSIDE + "each of its modules by name",
}

#: The same for what newer interpreters than the oldest one supported have.
LEFT_OUT_OF_NEWER: dict[str, str] = {
    "ChallengeResponseTest": _INSIDE + "the challenges of its connections",
}
