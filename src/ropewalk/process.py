"""`multiprocessing.process`: names that apply to processes of both; `ropewalk.Process` is a `BaseProcess` too."""

from multiprocessing.process import BaseProcess, active_children, current_process, parent_process

__all__ = ["BaseProcess", "active_children", "current_process", "parent_process"]
