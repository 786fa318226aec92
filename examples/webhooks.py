"""A batch of webhooks: many events, few requests.

Each event is a task of its own: durable, with its own result and retries. The customer's endpoint gets a list of them
in one request, as soon as there are 50, and after half a second at the latest. The endpoint here is a stand-in that is
down at first, and that rejects one event for good.
"""

import asyncio
from dataclasses import dataclass

from synergon import Batch, BatchErrors, Discard, Engine, Retry, RetryAfter, State

engine = Engine("memory://")


@dataclass
class Event:
    customer: str
    number: int


class Endpoint:
    """Takes a list of events, and answers with a status for each."""

    def __init__(self) -> None:
        self.requests: list[list[Event]] = []
        self.is_up = False

    async def post(self, events: list[Event]) -> list[int]:
        if not self.is_up:
            self.is_up = True
            raise ConnectionError("connection refused")
        self.requests.append(events)
        await asyncio.sleep(0.01)
        return [422 if event.number == 13 else 200 for event in events]


endpoints = {"ada": Endpoint(), "bob": Endpoint()}


@engine.task(batch=Batch(size=50, wait="500ms", by="{customer}"), retry=Retry(attempts=5, first=0.1))
async def deliver(events: list[Event]) -> list[int]:
    try:
        statuses = await endpoints[events[0].customer].post(events)
    except ConnectionError as error:
        raise RetryAfter(0.1, str(error)) from error  # concerns all of them
    rejected = {index: Discard("rejected") for index, status in enumerate(statuses) if status == 422}
    if rejected:
        raise BatchErrors(rejected)  # the others have succeeded
    return statuses


async def main() -> None:
    async with engine, engine.worker():
        handles = [await deliver.enqueue(Event(customer, number)) for number in range(120) for customer in endpoints]
        records = [await engine.wait(handle.id, timeout=30) for handle in handles]
        for customer, endpoint in endpoints.items():
            sizes = [len(request) for request in endpoint.requests]
            print(f"{customer}: 120 events in {len(sizes)} requests of {sizes}")
            assert sorted(event.number for request in endpoint.requests for event in request) == list(range(120))
            assert all(event.customer == customer for request in endpoint.requests for event in request)
            assert len(sizes) <= 6
        failed = [record for record in records if record.state is State.FAILED]
        print(f"{len(records) - len(failed)} delivered, {len(failed)} rejected ({failed[0].reason})")
        assert [record.arguments["events"]["number"] for record in failed] == [13, 13]


asyncio.run(main())
