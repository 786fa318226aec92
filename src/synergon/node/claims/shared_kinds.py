"""What kinds share beyond this node: limits, servers, lines. What frees a place wakes the kinds that may take it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from synergon.model.claims import Claim
from synergon.task import AnyTask

SERVERS: Final = "servers"
"""A place on any server: limits may cover servers of several providers."""


class SharedKinds:
    """Knows which places the kinds of this node take, and which of them were freed and not taken again."""

    def __init__(self, kinds: Mapping[str, AnyTask]) -> None:
        self._places = {kind: _places(task_type) for kind, task_type in kinds.items() if task_type.is_limited}
        self._takers: dict[str, set[str]] = {}
        for kind, names in self._places.items():
            for name in names:
                self._takers.setdefault(name, set()).add(kind)
        self.rated = frozenset(kind for kind, task_type in kinds.items() if task_type.policy.rate is not None)
        self.pooled = frozenset(kind for kind, task_type in kinds.items() if task_type.provider is not None)
        self._freed: Counter[str] = Counter()
        self.is_any = bool(self._places)
        """Whether any kind shares anything."""

    def freed(self, kinds: Iterable[str | None]) -> set[str]:
        """Tasks of these kinds have ended; the kinds that may have room now."""
        if not self._places:
            return set()
        ended = Counter(kinds)
        for kind, count in ended.items():
            for name in self._places.get(kind or "", ()):
                self._freed[name] += count
        return self.about_to_end(ended)

    def about_to_end(self, kinds: Iterable[str | None]) -> set[str]:
        """Tasks of these kinds will have ended before the store hears anything else; the kinds that may have room."""
        return self.takers(name for kind in set(kinds) for name in self._places.get(kind or "", ()))

    def heirs(self, kind: str | None) -> set[str]:
        """The kinds that may take the very place that a task of this kind leaves."""
        return self.takers(name for name in self._places.get(kind or "", ()) if name != SERVERS)

    def places(self, kind: str | None) -> list[str]:
        """What a task of this kind takes a place in, as others are told."""
        return list(self._places.get(kind or "", ()))

    @property
    def all(self) -> set[str]:
        """The kinds of this node that take places in anything."""
        return set(self._places)

    def takers(self, names: Iterable[str]) -> set[str]:
        """The kinds of this node that take places in these."""
        return {kind for name in names for kind in self._takers.get(name, ())}

    def left_over(self, claims: Iterable[Claim]) -> list[str]:
        """What was freed and not taken again by these claims: somebody else may want it."""
        if not self._freed:
            return []
        freed, self._freed = self._freed, Counter()
        freed.subtract(name for claim in claims for name in self._places.get(claim.kind, ()))
        return [name for name, count in freed.items() if count > 0]


def _places(task_type: AnyTask) -> tuple[str, ...]:
    """The names of all that a task of this kind takes a place in."""
    pool = () if task_type.provider is None else (pool_name(task_type.provider.name), SERVERS)
    line = () if task_type.line is None else (f"key:{task_type.kind}",)
    return (*task_type.limits, *pool, *line)


def pool_name(provider: str) -> str:
    """By which a place on a server of the provider is known."""
    return f"provider:{provider}"
