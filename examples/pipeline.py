"""A task that enqueues others: children are stored together with the success of their parent, and not otherwise.

An order is split into parcels. The first attempt fails after it has asked for its children; nothing of that is left.
"""

import asyncio
import tempfile

from synergon import Context, Engine, Retry, State, injected

folder = tempfile.TemporaryDirectory()
engine = Engine(f"sqlite:///{folder.name}/pipeline.db")


@engine.task(retry=Retry(attempts=2, first=0.1))
async def split_order(order: str, parcels: int, ctx: Context = injected) -> int:
    for number in range(1, parcels + 1):
        ctx.enqueue(pack.call(order, number))
    if ctx.attempt == 1:
        raise RuntimeError("the printer is out of paper")  # the children of this attempt never existed
    return parcels


@engine.task(queue="warehouse")
async def pack(order: str, number: int, ctx: Context = injected) -> str:
    ctx.enqueue(label.call(f"{order}/{number}"))
    return f"packed {order}/{number}"


@engine.task(queue="office", priority=5)
def label(parcel: str) -> str:
    return f"label for {parcel}"


async def main() -> None:
    async with engine:
        order = await split_order.enqueue("A-17", parcels=3)
        async with engine.worker(drain=True):  # the end of this block waits until nothing is left to do
            print(f"split into {await order.result(timeout=10)} parcels")

        for record in reversed([*await engine.tasks()]):
            print(f"{record.id:3} {record.kind:12} {record.state:10} attempts={record.attempts} -> {record.result}")
        assert (await order.status()).attempts == 2
        for kind in (pack, label):
            counts = await engine.counts(kind=kind.kind)
            assert counts[State.SUCCEEDED] == sum(counts.values()) == 3, counts


if __name__ == "__main__":
    with folder:
        asyncio.run(main())
