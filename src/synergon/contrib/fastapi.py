"""synergon in a FastAPI application: connects the engine, and gives handlers the engine and the tasks of requests.

from synergon.contrib.fastapi import TaskOfPath, lifespan

app = FastAPI(lifespan=lifespan(engine))

@app.get("/tasks/{task_id}")
async def status(task: TaskOfPath) -> dict[str, Any]:
    return task.as_dict()
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request

from synergon.engine import Engine
from synergon.errors import NotConnected, TaskNotFound
from synergon.model.task_records import TaskRecord

__all__ = ["EngineOfApp", "TaskOfPath", "lifespan"]


def lifespan(engine: Engine, *, worker: bool = False) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The lifespan of an application that uses the engine: connects it at the start, and disconnects it at the end.
    With `worker`, the application runs tasks, too."""

    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(engine)
            if worker:
                await stack.enter_async_context(engine.worker())
            app.state.synergon = engine
            yield

    return run


def _engine_of_app(request: Request) -> Engine:
    engine: Any = getattr(request.app.state, "synergon", None)
    if not isinstance(engine, Engine):
        raise NotConnected("this application has no engine; make it with FastAPI(lifespan=lifespan(engine))")
    return engine


EngineOfApp = Annotated[Engine, Depends(_engine_of_app)]
"""A parameter of a handler: the engine of the application."""


async def _task_of_path(task_id: int, engine: EngineOfApp) -> TaskRecord:
    try:
        return await engine.get(task_id)
    except TaskNotFound as error:
        raise HTTPException(404, str(error)) from error


TaskOfPath = Annotated[TaskRecord, Depends(_task_of_path)]
"""A parameter of a handler: the task whose id is `{task_id}` in the path. The answer is 404 if there is none."""
