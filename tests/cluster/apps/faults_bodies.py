"""Bodies that are easy to hurt. Each writes down when it begins and when it ends, so that a test can follow it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Literal

from synergon import Batch, Context, Engine

engine = Engine()


def write_down(event: str, label: str, ctx: Context) -> None:
    """One line with one write, so that the lines of many processes do not mix."""
    line = f"{event} {label} {ctx.claim_no} {os.getpid()} {os.getppid()} {time.time():.6f}\n"
    journal = os.open(os.environ["FAULTS_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(journal, line.encode())
    finally:
        os.close(journal)


def is_open(label: str) -> bool:
    """Whether the file is there that lets gated bodies end, all of them or this one."""
    gate = os.environ["FAULTS_JOURNAL"] + ".go"
    return Path(gate).exists() or Path(f"{gate}.{label}").exists()


# ------------------------------------------------------------ bodies that take their time


@engine.task
async def wait_at_the_gate(ctx: Context, label: str) -> str:
    """Take as long as the gate is closed."""
    write_down("begins", label, ctx)
    while not is_open(label):  # noqa: ASYNC110  the event is in another process
        await asyncio.sleep(0.01)
    write_down("ends", label, ctx)
    return label


@engine.task
async def hold(ctx: Context, label: str, first: float = 60, later: float = 0) -> str:
    """Take long when claimed for the first time, and not again."""
    write_down("begins", label, ctx)
    await asyncio.sleep(first if ctx.claim_no == 1 else later)
    write_down("ends", label, ctx)
    return label


@engine.task
def hold_in_thread(ctx: Context, label: str, first: float = 60, later: float = 0) -> str:
    """The same in a thread, which nobody can end."""
    write_down("begins", label, ctx)
    time.sleep(first if ctx.claim_no == 1 else later)
    write_down("ends", label, ctx)
    return label


@engine.task(runs_in="process")
def hold_in_process(ctx: Context, label: str, first: float = 60, later: float = 0) -> str:
    """The same in a child process."""
    write_down("begins", label, ctx)
    time.sleep(first if ctx.claim_no == 1 else later)
    write_down("ends", label, ctx)
    return label


@engine.task
async def block_the_loop(ctx: Context, label: str, first: float = 60, later: float = 0) -> str:
    """The same, written wrongly: nothing else on the event loop gets a turn."""
    write_down("begins", label, ctx)
    time.sleep(first if ctx.claim_no == 1 else later)  # noqa: ASYNC251  that is the point
    write_down("ends", label, ctx)
    return label


@engine.task
async def bulky(ctx: Context, label: str, seconds: float, length: int) -> str:
    """Return much, so that the file has to grow."""
    write_down("begins", label, ctx)
    await asyncio.sleep(seconds)
    return "x" * length


# ------------------------------------------------------------ bodies that do harm


@engine.task
async def poison(ctx: Context, label: str) -> None:
    """Kill the process that runs it, whichever that is."""
    write_down("begins", label, ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@engine.task(runs_in="process")
def die_once(ctx: Context, label: str, how: Literal["segfault", "exit"]) -> str:
    """Take the child process down when claimed for the first time."""
    write_down("begins", label, ctx)
    if ctx.claim_no == 1 and how == "segfault":
        ctypes.string_at(0)
    if ctx.claim_no == 1:
        os._exit(3)
    return label


# ------------------------------------------------------------ bodies that use more than their arguments


@engine.task
async def echo(label: str) -> str:
    return label


@engine.task
async def hold_then_write(ctx: Context, label: str, first: float = 60) -> str:
    """Take long when claimed for the first time; then write a row in the transaction that success is committed with."""
    write_down("begins", label, ctx)
    await asyncio.sleep(first if ctx.claim_no == 1 else 0)
    async with ctx.transaction() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS written (label TEXT)")
        connection.execute("INSERT INTO written VALUES (?)", (label,))
    write_down("ends", label, ctx)
    return label


@engine.task(runs_in="process")
async def enqueue_from_process(label: str) -> str:
    return await (await echo.enqueue(label)).result(timeout=30)


@engine.task(runs_in="process")
def enqueue_from_process_without_a_loop(label: str) -> str:
    return echo.enqueue_sync(label).result_sync(timeout=30)


# ------------------------------------------------------------ batches


@engine.task(batch=Batch(size=10, wait=0.2))
def batched(labels: list[str], ctx: Context) -> list[str]:
    """End all items, unless one of them is poisonous: then the process dies before any of them has ended."""
    write_down("begins", labels[0], ctx)
    if any(label.startswith("poison") for label in labels):
        os.kill(os.getpid(), signal.SIGKILL)
    for label in labels:
        write_down("ends", label, ctx)
    return labels


@engine.task(batch=Batch(size=10, wait=0.2), runs_in="process")
def batched_in_process(labels: list[str], ctx: Context) -> list[str]:
    """The same in a child process."""
    return batched(labels, ctx) or []
