"""What a body returns is made JSON once and read from it once, however many parts it passes on its way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from synergon import Engine
from synergon.model.task_records import TaskRecord
from synergon.options import payload
from synergon.options.payload import Signature


class Parcel(msgspec.Struct):
    """A result that is no plain JSON."""

    number: int
    label: str


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a parcel was made JSON, made from JSON, or read as a plain value."""
    counts: Counter[str] = Counter()
    encode, decode_result = payload._encoder.encode, Signature.decode_result

    class Encoder:
        def encode(self, value: Any) -> bytes:
            counts["encoded"] += isinstance(value, Parcel)
            return encode(value)

    def decode(self: Signature, result: bytes) -> Any:
        counts["decoded"] += 1
        return decode_result(self, result)

    def read(self: TaskRecord) -> Any:
        counts["read as a plain value"] += 1
        return None if self.result_json is None else msgspec.json.decode(self.result_json)

    monkeypatch.setattr(payload, "_encoder", Encoder())
    monkeypatch.setattr(Signature, "decode_result", decode)
    monkeypatch.setattr(TaskRecord, "result", property(read))
    return counts


async def test_a_result_is_encoded_once_and_decoded_once(engine: Engine, counted: Counter[str]) -> None:
    @engine.task
    async def pack(number: int) -> Parcel:
        return Parcel(number, "fragile")

    async with engine, engine.worker():
        handle = await pack.enqueue(7)
        assert await handle.result(timeout=30) == Parcel(7, "fragile")
    assert counted == {"encoded": 1, "decoded": 1}
