"""Records are plain JSON values for `json.dumps`, pydantic and web frameworks."""

from __future__ import annotations

import inspect
import json
from datetime import datetime

import pydantic
import pytest
from tests.support import ended

import synergon
from synergon import Context, Engine, Retry
from synergon.model.record import Record

RECORDS = [found for found in vars(synergon).values() if inspect.isclass(found) and found.__name__.endswith("Record")]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_has_as_dict(record: type) -> None:
    assert issubclass(record, Record)


async def test_a_task_with_progress_errors_and_a_result_is_json(engine: Engine) -> None:
    @engine.task(retry=Retry(attempts=2, first=0))
    async def resize(ctx: Context, image: str) -> dict[str, int]:
        ctx.progress(0.5, "half")
        if ctx.attempt == 1:
            raise ValueError("try again")
        return {"width": 7}

    async with engine.worker():
        record = await ended(await resize.with_options(tags=["a"], meta={"who": "Ada"}).enqueue("cat"))
    values = record.as_dict()
    assert json.loads(json.dumps(values)) == values
    assert values["arguments"] == {"image": "cat"}
    assert values["result"] == {"width": 7}
    assert values["progress"] == {"fraction": 0.5, "message": "half"}
    assert values["errors"][0]["message"] == "try again"
    assert [attempt["outcome"] for attempt in values["attempts_made"]] == ["error", "succeeded"]
    assert values["state"] == "succeeded"
    assert datetime.fromisoformat(values["finished_at"]) == record.finished_at
    assert not {"payload", "overrides", "requirements", "ended_attempts"} & values.keys()
    answer = pydantic.TypeAdapter(dict[str, object]).dump_json({"task": values, "page": [values]})
    assert json.loads(answer)["page"][0]["id"] == record.id


async def test_other_records_are_json(engine: Engine) -> None:
    engine.limit("mail", 3)
    async with engine.worker():
        records: list[Record] = [*await engine.nodes(), *await engine.queues(), *await engine.audit()]
        await engine.set_limit("mail", 4)
        for record in [*records, *await engine.limits(), *await engine.audit()]:
            assert json.loads(json.dumps(record.as_dict())) == record.as_dict()
