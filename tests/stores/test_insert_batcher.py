"""The batcher of PostgreSQL's inserts, in random stories on virtual time: nothing it is given is left behind.

The stories also find batchers that are broken on purpose, so they can find a fault.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.simulation.virtual_loop import VirtualLoop

from synergon.errors import DataRejected, NotConnected, StoreError, StoreUnavailable, SynergonError
from synergon.model.lifecycle import State
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.postgres import insert_batcher
from synergon.stores.postgres.insert_batcher import InsertBatcher

BAD: Final = "bad"
"""The kind of a task that the database refuses, together with all that is in its statement."""
PATIENCE_SECONDS: Final = 30.0
EXAMPLES: Final = 500


class Arrive(NamedTuple):
    """A caller inserts tasks."""

    tasks: int
    is_bad: bool


class Cancel(NamedTuple):
    """A caller is cancelled."""

    caller: int


class Run(NamedTuple):
    """The event loop runs this many turns."""

    turns: int


class Answer(NamedTuple):
    """The statement under way ends."""

    how: str


class Stop(NamedTuple):
    """The store closes; `is_silent`: the database answers nothing more."""

    is_silent: bool


Step = Arrive | Cancel | Run | Answer | Stop
ENDINGS: Final = ("well", "away", "away after the commit", "by mistake", "cancelled")

steps = st.one_of(
    st.builds(Arrive, st.integers(1, 3), st.integers(0, 5).map(lambda drawn: drawn == 5)),
    st.builds(Answer, st.sampled_from(("well", "well", "well", *ENDINGS))),
    st.builds(Run, st.integers(1, 4)),
    st.builds(Cancel, st.integers(0, 20)),
)
stories = st.builds(
    lambda first, last: [*first, last],
    st.lists(steps, min_size=1, max_size=25),
    st.builds(Stop, st.booleans()),
)


class Database:
    """Ends each insert when, and how, a story says."""

    def __init__(self) -> None:
        self.stored: Counter[str] = Counter()
        self._answers: list[asyncio.Future[str]] = []

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        assert not self._answers, "one statement is under way at a time"
        self._answers = [asyncio.get_running_loop().create_future()]
        try:
            how = await self._answers[0]
        finally:
            self._answers.clear()
        match how:
            case "away":
                raise StoreUnavailable("away")
            case "by mistake":
                raise RuntimeError("a mistake")
            case "cancelled":
                raise asyncio.CancelledError
        if any(task.kind == BAD for task in tasks):
            raise DataRejected("bad")
        self.stored.update(task.queue for task in tasks)
        if how == "away after the commit":
            raise StoreUnavailable("the connection was lost")
        return [Insertion(int(task.queue), created=True, state=State.READY) for task in tasks]

    @property
    def is_asked(self) -> bool:
        return bool(self._answers) and not self._answers[0].done()

    def answer(self, how: str) -> None:
        if self.is_asked:
            self._answers[0].set_result(how)


class Caller:
    """One awaited insert: what it gave, and what was stored when it ended."""

    def __init__(self, batcher: InsertBatcher, database: Database, first: int, step: Arrive) -> None:
        self._database = database
        self.is_bad = step.is_bad
        # The queue tells the tasks apart.
        self.numbers = [str(number) for number in range(first, first + step.tasks)]
        self._tasks = [NewTask(kind=BAD if step.is_bad else "good", queue=number) for number in self.numbers]
        self.cancels = 0
        self.stored_at_end: list[int] | None = None
        self.task = asyncio.get_running_loop().create_task(self._insert(batcher))

    async def _insert(self, batcher: InsertBatcher) -> list[Insertion]:
        try:
            return await batcher.insert(self._tasks)
        finally:
            self.stored_at_end = self.stored

    def cancel(self) -> None:
        self.cancels += 1
        self.task.cancel()

    @property
    def stored(self) -> list[int]:
        """How often each of its tasks is stored."""
        return [self._database.stored[number] for number in self.numbers]


class Story:
    """Tells the steps to a batcher."""

    def __init__(self, batcher_type: type[InsertBatcher]) -> None:
        self._database = Database()
        self._batcher = batcher_type(self._database.insert, cancel_seconds=PATIENCE_SECONDS * 10)
        self._callers: list[Caller] = []
        self._tasks = 0
        self._has_trouble = False

    async def tell(self, told: Sequence[Step]) -> None:
        for step in told:
            await self._take(step)
        await self._check()

    async def _take(self, step: Step) -> None:
        match step:
            case Arrive():
                self._callers.append(Caller(self._batcher, self._database, self._tasks, step))
                self._tasks += step.tasks
            case Cancel(caller=number):
                if self._callers:
                    self._callers[number % len(self._callers)].cancel()
            case Run(turns=turns):
                for _ in range(turns):
                    await asyncio.sleep(0)
            case Answer(how=how):
                self._has_trouble = self._has_trouble or how != "well"
                self._database.answer(how)
            case Stop(is_silent=is_silent):
                await self._stop(is_silent=is_silent)

    async def _stop(self, *, is_silent: bool) -> None:
        """Half of the stories let everything end first; then a silent database must leave nothing that hangs."""
        self._has_trouble = self._has_trouble or is_silent
        if not is_silent:
            await self._answer_all()
        await asyncio.wait_for(self._batcher.close(PATIENCE_SECONDS), PATIENCE_SECONDS * 2)
        with pytest.raises(NotConnected):
            await self._batcher.insert([NewTask(kind="late")])

    async def _answer_all(self) -> None:
        for _ in range(1000):  # turns; each caller needs a few
            if self._callers and all(caller.task.done() for caller in self._callers):
                return
            self._database.answer("well")
            await asyncio.sleep(0)

    async def _check(self) -> None:
        tasks = [caller.task for caller in self._callers]
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
        assert all(task.done() for task in tasks), "a caller is left behind"
        for caller in self._callers:
            assert len(set(caller.stored)) == 1, "all of a call or nothing"
            assert caller.stored[0] <= 1, "once"
            if caller.task.cancelled() and caller.stored_at_end is None:
                assert caller.stored[0] == 0, "it had not begun"
                continue
            if caller.cancels <= 1:  # a second one is obeyed at once
                assert caller.stored == caller.stored_at_end, "nothing is stored after its end"
            if not caller.task.cancelled():
                self._check_answer(caller)

    def _check_answer(self, caller: Caller) -> None:
        error = caller.task.exception()
        if error is None:
            assert not caller.is_bad
            assert [str(insertion.id) for insertion in caller.task.result()] == caller.numbers
            assert caller.stored[0] == 1
        elif isinstance(error, DataRejected):
            assert caller.is_bad, "neighbours are spared"
        else:
            assert self._has_trouble, f"{error!r} without a reason"
            assert isinstance(error, StoreError | RuntimeError | NotConnected)
            assert not (isinstance(error, NotConnected) and caller.stored[0])


class EagerLoop(VirtualLoop):
    """Begins each task inside `create_task`, as `asyncio.eager_task_factory` does."""

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, eager_start=True, **options)  # type: ignore[call-arg]  # new in 3.12


needs_eager_tasks = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks need Python 3.12")


def tell(batcher_type: type[InsertBatcher], told: Sequence[Step], loop_type: type[VirtualLoop] = VirtualLoop) -> None:
    loop = loop_type()
    loop.run(Story(batcher_type).tell(told))
    assert loop.complaints == []


@given(stories)
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_call_ends_and_its_tasks_are_stored_once_or_its_caller_has_the_error(told: Sequence[Step]) -> None:
    tell(InsertBatcher, told)


@needs_eager_tasks
@given(stories)
@settings(max_examples=EXAMPLES, deadline=None)
def test_so_it_does_when_tasks_begin_at_once(told: Sequence[Step]) -> None:
    tell(InsertBatcher, told, EagerLoop)


@pytest.mark.parametrize("cancels", [1, 2], ids=["that is out of patience", "that is cancelled twice"])
async def test_an_error_after_the_end_of_a_cancelled_caller_is_not_logged(cancels: int) -> None:
    logged: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context["message"]))
    database = Database()
    batcher = InsertBatcher(database.insert, cancel_seconds=0.001 if cancels == 1 else PATIENCE_SECONDS)
    caller = asyncio.create_task(batcher.insert([NewTask(kind="good")]))
    for _ in range(cancels):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.wait([caller])
    assert database.is_asked
    database.answer("away")
    await batcher.close(PATIENCE_SECONDS)
    del caller
    gc.collect()
    assert logged == []


# ---------------------------------------------------------------- broken on purpose


class LooksOnce(InsertBatcher):
    """Its flusher does not look again at what came meanwhile."""

    async def _flush(self) -> None:
        if self._take():
            await self._insert_together()


class CountsEndedFlushers(InsertBatcher):
    """A flusher counts until the callback of its end has run; what comes between is left behind."""

    def _start_flusher(self) -> None:
        if self._flusher is None:
            super()._start_flusher()

    def _fail_waiting(self, flusher: asyncio.Task[None]) -> None:
        if flusher.cancelled():
            super()._fail_waiting(flusher)
        self._flusher = None


class LeavesWhatItHad(InsertBatcher):
    """A flusher that is cancelled says nothing to those it worked for."""

    def _fail_waiting(self, flusher: asyncio.Task[None]) -> None:
        """Nothing."""


class LeavesItsStatement(InsertBatcher):
    """A flusher that is cancelled says nothing to those whose statement was under way."""

    async def _flush(self) -> None:
        while self._take():
            await self._insert_together()


class FailsTheNextStatement(LeavesItsStatement):
    """The callback of a flusher fails what is under way, also when the next flusher has begun that."""

    def _fail_waiting(self, flusher: asyncio.Task[None]) -> None:
        insert_batcher._fail(self._under_way, StoreUnavailable("closed"))
        super()._fail_waiting(flusher)


class InsertsInTheCaller(InsertBatcher):
    """The first caller inserts for all: when it is cancelled, so are the others."""

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        if self._is_closed:
            raise NotConnected("closed")
        call = insert_batcher._Call(tasks)
        self._waiting.append(call)
        if not self._under_way:
            while self._take():
                await self._insert_together()
        return await call.future


class FailsNeighbours(InsertBatcher):
    """One bad task fails all that shared its statement."""

    async def _insert_one_by_one(self) -> None:
        insert_batcher._fail(self._under_way, DataRejected("one of them is bad"))


class TriesAgain(InsertBatcher):
    """It inserts once more when the connection was lost after the commit."""

    async def _insert_together(self) -> None:
        calls, insert = self._under_way, self._insert
        tasks = [task for call in calls for task in call.tasks]
        with suppress(StoreUnavailable):
            await insert(tasks)
        await super()._insert_together()


MUTANTS: Final = (
    LooksOnce,
    CountsEndedFlushers,
    LeavesWhatItHad,
    LeavesItsStatement,
    InsertsInTheCaller,
    FailsNeighbours,
    TriesAgain,
)


def find_fault(check: Callable[[Sequence[Step]], None]) -> None:
    """Tell as many stories as the test of the real one; AssertionError if one of them finds a fault."""

    @given(stories)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    def look(told: Sequence[Step]) -> None:
        try:
            check(told)
        except (SynergonError, TimeoutError, RuntimeError) as error:
            raise AssertionError("it fails in its own way") from error

    look()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_stories_find_a_batcher_that_is_broken_on_purpose(mutant: type[InsertBatcher]) -> None:
    with pytest.raises(AssertionError):
        find_fault(lambda told: tell(mutant, told))


@needs_eager_tasks
def test_the_stories_find_a_batcher_that_fails_the_next_statement() -> None:
    with pytest.raises(AssertionError):
        find_fault(lambda told: tell(FailsTheNextStatement, told, EagerLoop))


def test_the_stories_find_a_batcher_that_lets_a_cancelled_caller_go_before_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def at_once(_call: insert_batcher._Call, _patience_seconds: float) -> None:
        """Nothing."""

    monkeypatch.setattr(insert_batcher._Call, "wait_for_statement", at_once)
    with pytest.raises(AssertionError):
        find_fault(lambda told: tell(InsertBatcher, told))
