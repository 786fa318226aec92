"""The memory store: for tests, and for tasks that need not survive the process."""

from synergon.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
