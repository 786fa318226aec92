"""The store for tests and for work that need not survive, within one process."""

from synergon.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
