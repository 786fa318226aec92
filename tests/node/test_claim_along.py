"""A claim that goes along with something else: it forgets no reason to claim, and is before nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.stores.actions import new_node

from synergon import Engine
from synergon.errors import StoreUnavailable
from synergon.model.claims import Claim, ClaimRequest, Claims
from synergon.node.claims.admission import Admission
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.scheduler import Scheduler

ONE = Claim(1, 1, "shared", "default", b"{}", 1, None, 0, None, (), None)


class Stand:
    """A scheduler with three slots, and nothing to claim; what goes along is answered by the test."""

    def __init__(self, engine: Engine) -> None:
        kinds: dict[str, Any] = {
            "shared": engine.task(name="shared", limits=["license"])(self._body),
            "other": engine.task(name="other", max_running=1)(self._body),
        }
        self.ledger = Ledger(3, 1)
        self.started: list[Claim] = []
        self.asked: list[ClaimRequest] = []
        self.answer: Claims | Exception | None = Claims([ONE])
        self.scheduler = Scheduler(engine.store, Admission(kinds, self.ledger, None), kinds, self.started.extend)
        self.scheduler.node_id = "node-1"

    @staticmethod
    async def _body() -> None: ...

    async def along(self, *beside: str) -> bool:
        return await self.scheduler.claim_along({"shared"}, self._ask, beside=set(beside))

    async def _ask(self, request: ClaimRequest) -> Claims | None:
        self.asked.append(request)
        assert self.scheduler.is_claiming, "one claim is in flight at a time"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    """After a first claim, which has found nothing."""
    engine = Engine("memory://")
    engine.limit("license", 1)
    async with engine:
        await engine.store.register(new_node("node-1"))
        made = Stand(engine)
        await made.scheduler.step()
        assert made.scheduler.is_at_rest(None)
        yield made


async def test_what_it_takes_is_started_and_nothing_more_is_asked_for(stand: Stand) -> None:
    assert await stand.along()
    assert stand.started == [ONE]
    assert [room.kind for request in stand.asked for room in request.kinds] == ["shared"]
    assert stand.scheduler.is_at_rest(None)


async def test_whatever_else_there_was_a_reason_to_ask_for_is_asked_yet(stand: Stand) -> None:
    stand.scheduler.wake(["shared"])
    assert await stand.along()
    assert not stand.scheduler.is_at_rest("shared")


async def test_a_place_that_is_left_to_another_node_is_nobodys_here(stand: Stand) -> None:
    stand.answer = Claims()
    assert not await stand.along()
    stand.answer.left = ((7, "theirs"),)
    assert await stand.along()
    assert (stand.started, stand.scheduler.is_at_rest(None)) == ([], True)


async def test_kinds_beside_are_named_if_there_is_room_for_them(stand: Stand) -> None:
    assert await stand.along("other")
    stand.ledger.take("other")
    assert await stand.along("other")
    assert [[room.kind for room in request.kinds] for request in stand.asked] == [["shared", "other"], ["shared"]]


async def test_what_did_not_fit_is_not_forgotten_for_it(stand: Stand) -> None:
    stand.answer = Claims()
    stand.answer.unfit = frozenset({"other"})
    await stand.along("other")
    stand.answer = Claims([ONE])
    assert await stand.along("other")
    assert stand.scheduler.is_at_rest("other")
    stand.scheduler.look_at_unfit()
    assert not stand.scheduler.is_at_rest("other")


@pytest.mark.parametrize("answer", [None, StoreUnavailable("away")])
async def test_what_has_no_answer_is_asked_again(stand: Stand, answer: Exception | None) -> None:
    stand.answer = answer
    if answer is None:
        assert not await stand.along()
    else:
        with pytest.raises(StoreUnavailable):
            await stand.along()
    assert not stand.scheduler.is_at_rest("shared")
    await stand.scheduler.settled()


async def test_who_waits_for_a_claim_waits_for_the_next_one_that_has_begun_meanwhile(stand: Stand) -> None:
    """Else two of them would be given the same slot."""
    gates = [asyncio.Event(), asyncio.Event()]

    async def ask(_: ClaimRequest) -> Claims:
        await gates[len(stand.started)].wait()
        return Claims([ONE])

    async def one_after_the_other() -> None:
        for _ in gates:
            await stand.scheduler.claim_along({"shared"}, ask)

    passing = asyncio.ensure_future(one_after_the_other())
    await asyncio.sleep(0)
    stand.scheduler.wake(["shared"])
    others = [asyncio.ensure_future(wait()) for wait in (stand.scheduler.settled, stand.scheduler.step)]
    await asyncio.sleep(0)
    gates[0].set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (len(stand.started), stand.scheduler.is_claiming) == (1, True)
    assert not any(other.done() for other in others)
    gates[1].set()
    await asyncio.gather(passing, *others)
    assert not stand.scheduler.is_claiming


async def test_others_that_have_room_may_be_before_it(stand: Stand) -> None:
    stand.scheduler.wake(["other"])
    assert (await stand.along(), stand.asked) == (False, [])


async def test_others_that_have_no_room_are_not(stand: Stand) -> None:
    stand.ledger.take("other")
    stand.scheduler.wake(["other"])
    assert await stand.along()
    assert not stand.scheduler.is_at_rest("other")


async def test_a_node_that_may_claim_nothing_takes_nothing_along(stand: Stand) -> None:
    stand.scheduler.cordon()
    assert (await stand.along(), stand.asked) == (False, [])
