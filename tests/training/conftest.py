"""Here, too, numbers are compared to the last bit."""

from tests.pipeline.conftest import one_thread

__all__ = ["one_thread"]
