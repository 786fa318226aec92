"""An import in steps: two extracts, one merge, one task for each customer, one report. One step fails and is retried.

python examples/etl_flow.py
"""

import asyncio
from dataclasses import dataclass

from synergon import Context, Engine, TaskCancelled

engine = Engine("memory://")
is_down = True


@dataclass
class Order:
    customer: str
    amount: int


@engine.task
async def extract(region: str) -> list[Order]:
    """Read the orders of a region."""
    if region == "us" and is_down:
        raise ConnectionError("the database of the region is down")
    return [Order(f"{region}-{number}", 10 * number) for number in (1, 2)]


@engine.task
async def merge(orders: list[list[Order]]) -> list[Order]:
    """Put the regions together."""
    return sorted((order for region in orders for order in region), key=lambda order: order.customer)


@engine.task
async def bill(order: Order) -> str:
    """Make one bill; a task of its own for each order."""
    return f"{order.customer} pays {order.amount}"


@engine.task
async def report(ctx: Context, bills: list[str]) -> str:
    """The last step: it gets the results of all bills."""
    return f"{len(bills)} bills after {len(ctx.dependencies)} tasks: {'; '.join(bills)}"


async def main() -> None:
    global is_down
    async with engine.worker():
        flow = engine.flow("nightly import")
        regions = [flow.add(extract.call(region)) for region in ("eu", "us")]
        orders = flow.add(merge.call([region.result for region in regions]))
        bills = flow.map(bill, over=orders)
        flow.add(report.call(bills.results))
        run = await flow.enqueue()
        try:
            await run.result(timeout=30)
        except TaskCancelled as error:
            print(f"{error}, because of a task that it depends on")
        is_down = False  # somebody has mended it
        print(f"{await run.retry()} step runs again")
        print(await run.result(timeout=30))
        for step in await run.steps():
            needs = ", ".join(str(need.task_id) for need in step.needs)
            print(f"{step.task.id:>3} {step.task.kind:<8} {step.task.state}{f', after {needs}' if needs else ''}")


if __name__ == "__main__":
    asyncio.run(main())
