"""`multiprocessing.shared_memory`: named blocks of memory for processes on one host.

Sending a block to another host raises `WrongHost`; pass arrays through a queue, or keep them in a service instead.
"""

from multiprocessing.shared_memory import ShareableList, SharedMemory

__all__ = ["ShareableList", "SharedMemory"]
