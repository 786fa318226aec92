"""An order and its task in one commit, and a task whose own writes are committed with its success.

Both tables live in one SQLite file, so there is no moment in which one exists without the other.
"""

import asyncio
import sqlite3
import tempfile

from synergon import Context, Engine, Retry, State, TaskNotFound, injected

folder = tempfile.TemporaryDirectory()
path = f"{folder.name}/shop.db"
engine = Engine(f"sqlite:///{path}")


@engine.task(retry=Retry(attempts=2, first=0.1))
def ship(order_id: int, ctx: Context = injected) -> str:
    """Writes in the engine's own database: committed when the function returns, rolled back when it fails."""
    with ctx.transaction() as db:
        db.execute("UPDATE orders SET status = 'shipped', shipments = shipments + 1 WHERE id = ?", (order_id,))
        ctx.enqueue(send_receipt.call(order_id))
    if ctx.attempt == 1:
        raise RuntimeError("the van did not start")
    return f"order {order_id} is on its way"


@engine.task
async def send_receipt(order_id: int) -> str:
    return f"receipt for order {order_id}"


async def main() -> None:
    shop = sqlite3.connect(path)
    shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, status TEXT, shipments INTEGER DEFAULT 0)")
    shop.commit()

    async with engine:
        with shop:  # sqlite3's own `with`: commit at the end, roll back on an exception
            order_id = shop.execute("INSERT INTO orders (item, status) VALUES ('tea', 'paid')").lastrowid
            assert order_id is not None
            shipping = await ship.with_options(conn=shop).enqueue(order_id)
        print(f"order {order_id} and task {shipping.id} were committed together")

        try:
            with shop:
                shop.execute("INSERT INTO orders (item, status) VALUES ('milk', 'paid')")
                lost = await ship.with_options(conn=shop).enqueue(2)
                raise RuntimeError("the card was refused")
        except RuntimeError as error:
            print(f"rolled back: {error}")
        try:
            await lost.status()
        except TaskNotFound:
            print("the second order has left no task behind")
        else:
            raise AssertionError("the task of a rolled back order exists")

        async with engine.worker(drain=True):
            print(await shipping.result(timeout=10))

        orders = shop.execute("SELECT id, item, status, shipments FROM orders").fetchall()
        print("orders:", orders)
        assert orders == [(1, "tea", "shipped", 1)], "the write of the failed attempt was rolled back"
        receipts = await engine.counts(kind="send_receipt")
        assert receipts[State.SUCCEEDED] == sum(receipts.values()) == 1
    shop.close()


if __name__ == "__main__":
    with folder:
        asyncio.run(main())
