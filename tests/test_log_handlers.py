import logging

import pytest

_apart = logging.getLogger("tests.apart")
_apart.propagate = False


def test_pytest_looks_through_no_loggers_for_those_that_keep_their_records(caplog: pytest.LogCaptureFixture) -> None:
    # It would attach its handlers to this one, six times a test.
    assert caplog.handler in logging.getLogger().handlers
    assert not _apart.handlers
