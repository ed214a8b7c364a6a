"""`multiprocessing.shared_memory`: blocks of memory with a name, for processes of one host.

They raise when they are sent to another host; there, pass arrays through a queue, or keep them in a service.
"""

from multiprocessing.shared_memory import ShareableList, SharedMemory

__all__ = ["ShareableList", "SharedMemory"]
