"""Why a task waits: each sentence, on one node and on three; and when the cause is gone, the task runs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.node.explained_nodes import crew_of
from tests.node.situations import (
    SCENARIOS,
    Scenario,
    cordoned,
    does_not_fit,
    in_line,
    limit_full,
    other_queues,
    provider_full_on_nodes,
    queue_full_on_nodes,
    resource_full,
    server_resting,
)
from tests.support import until_state

from synergon import State

QUEUES: dict[Scenario, Any] = {other_queues: ["default"], queue_full_on_nodes: {"default": None, "bounded": 1}}
"""The queues that the nodes serve, where it is not all of them."""


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_it_is_said_why_it_waits_and_without_the_cause_it_runs(
    scenario: Scenario, count: int, memory_url: str
) -> None:
    await play(scenario, count, memory_url)


@pytest.mark.parametrize(
    "scenario",
    [
        in_line,
        limit_full,
        server_resting,
        resource_full,
        cordoned,
        does_not_fit,
        queue_full_on_nodes,
        provider_full_on_nodes,
    ],
)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_the_same_is_said_on_every_store(scenario: Scenario, store: str, request: pytest.FixtureRequest) -> None:
    await play(scenario, 3, request.getfixturevalue(f"{store}_url"))


async def play(scenario: Scenario, count: int, url: str) -> None:
    async with crew_of(count, url, queues=QUEUES.get(scenario)) as crew:
        situation = await scenario(crew)
        explanation = await crew.said(situation.handle, situation.pattern)
        nodes = [node.causes for node in explanation.nodes]
        assert situation.why in {cause.why for causes in (explanation.causes, *nodes) for cause in causes}
        assert not explanation.can_start_on
        assert [node.age for node in explanation.nodes[:1]] in ([], [0.0])
        await situation.remove()
        await until_state(situation.handle, State.RUNNING, State.SUCCEEDED)
        crew.gate.open()
        await until_state(situation.handle, State.SUCCEEDED)
        assert (await situation.handle.explain()).sentence.startswith("succeeded at ")
