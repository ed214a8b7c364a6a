"""`multiprocessing.connection`: connections of Ropewalk, and the other names of that module."""

from multiprocessing import AuthenticationError, BufferTooShort
from multiprocessing.connection import Client, Listener, answer_challenge, deliver_challenge, wait

from ropewalk.sharing.connections import Connection, Pipe

__all__ = [
    "AuthenticationError",
    "BufferTooShort",
    "Client",
    "Connection",
    "Listener",
    "Pipe",
    "answer_challenge",
    "deliver_challenge",
    "wait",
]
