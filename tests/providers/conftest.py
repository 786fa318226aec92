"""What tasks share is shared on every store."""

from tests.node.every_store import every_url

__all__ = ["every_url"]
