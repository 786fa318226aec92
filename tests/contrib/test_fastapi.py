"""synergon in a real FastAPI application."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from synergon import Engine, NotConnected
from synergon.contrib.fastapi import EngineOfApp, TaskOfPath, lifespan


def application(engine: Engine, **options: bool) -> FastAPI:
    """An application that enqueues, and shows tasks."""
    app = FastAPI(lifespan=lifespan(engine, **options))

    @engine.task
    def double(number: int) -> int:
        return 2 * number

    @app.post("/double", status_code=202)
    async def enqueue(number: int) -> dict[str, int]:
        return {"task": (await double.enqueue(number)).id}

    @app.post("/double-in-thread", status_code=202)
    def enqueue_in_thread(number: int) -> dict[str, int]:
        return {"task": double.enqueue_sync(number).id}

    @app.get("/tasks/{task_id}")
    async def status(task: TaskOfPath) -> dict[str, Any]:
        return task.as_dict()

    @app.get("/tasks/{task_id}/result")
    async def result(task_id: int, engine: EngineOfApp) -> Any:
        return (await engine.wait(task_id, timeout=30)).result

    return app


def test_handlers_enqueue_and_show_tasks(url: str) -> None:
    engine = Engine(url)
    with TestClient(application(engine)) as client:
        assert client.post("/double", params={"number": 4}).json() == {"task": 1}
        assert client.post("/double-in-thread", params={"number": 5}).json() == {"task": 2}
        shown = client.get("/tasks/2").json()
        assert (shown["state"], shown["arguments"]) == ("ready", {"number": 5})
        missing = client.get("/tasks/99")
        assert (missing.status_code, "99" in missing.json()["detail"]) == (404, True)
        assert client.get("/tasks/none").status_code == 422
    assert not engine._connection.is_open


def test_an_application_with_a_worker_runs_its_tasks(url: str) -> None:
    engine = Engine(url)
    with TestClient(application(engine, worker=True)) as client:
        task = client.post("/double", params={"number": 4}).json()["task"]
        assert client.get(f"/tasks/{task}/result").json() == 8
    assert engine._node is None


def test_an_application_without_the_lifespan_is_told_what_is_missing() -> None:
    app = FastAPI()

    @app.get("/tasks/{task_id}")
    async def status(task: TaskOfPath) -> None: ...

    with pytest.raises(NotConnected, match=r"lifespan=lifespan\(engine\)"):
        TestClient(app).get("/tasks/1")
