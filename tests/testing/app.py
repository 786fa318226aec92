"""The user's module that is tested: an engine that nobody may open, and tasks that tell that they ran."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from synergon import Context, Engine, Retry, injected

engine = Engine("sqlite:////nonexistent/folder/app.db")  # whoever opens this fails
ran: list[str] = []


@dataclass
class Address:
    name: str
    mail: str


@engine.task
async def greet(name: str) -> str:
    ran.append(name)
    return f"hello {name}"


@engine.task
async def listed(names: list[str]) -> list[str]:
    return names


@engine.task(queue="mail", priority=10, retry=Retry(attempts=3, first=60, factor=2))
async def send(to: Address, subject: str = "welcome", copies: int = 1) -> None:
    ran.append(to.mail)


@engine.task(retry=Retry(attempts=3, first=60, factor=2))
async def flaky(failures: int, ctx: Context = injected) -> int:
    ran.append(f"attempt {ctx.attempt}")
    if ctx.attempt <= failures:
        raise ConnectionError(f"no answer to attempt {ctx.attempt}")
    return ctx.attempt


@engine.task
async def broken() -> None:
    raise ZeroDivisionError("by nobody")


@engine.task
def in_a_thread(name: str) -> str:
    return f"{name} in {threading.current_thread().name}"


@engine.task(runs_in="process")
def in_a_process(name: str) -> str:
    ran.append(name)  # the test would not see this from another process
    return name.upper()


@engine.task(runs_in="process")
def enqueues_from_a_process(name: str) -> int:
    return greet.enqueue_sync(name).id


@engine.task
async def parent(children: int, ctx: Context = injected) -> None:
    ran.append("parent")
    for number in range(children):
        ctx.enqueue(greet.call(f"child {number}"))


@engine.task
async def asks(name: str) -> str:
    answer = await (await greet.enqueue(name)).result()
    return f"{answer}, I am told"
