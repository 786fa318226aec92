"""What the tests of the web API share: clients with a role, and an application with tasks of many kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import httpx2 as httpx
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from synergon import Engine, Secret
from synergon.web.access import Role, User
from synergon.web.app import make_app

HOST: Final = "tasks.example.com"
API: Final = f"http://{HOST}/api/v1"
JSON: Final = {"Content-Type": "application/json"}


def by_header(request: HTTPConnection) -> User | None:
    """The caller that the header `X-Role` names."""
    role = request.headers.get("x-role")
    return None if role is None else User(f"{role}-user", Role(role))


def client_of(app: Starlette, role: str | None = None, **headers: str) -> httpx.AsyncClient:
    """A client of the app, with this role."""
    sent = {**headers} if role is None else {"X-Role": role, **headers}
    # An error in the app is an answer for its callers, and a failure here.
    transport = httpx.ASGITransport(app=app, client=("10.0.0.7", 1234))
    return httpx.AsyncClient(transport=transport, base_url=API, headers=sent)


@asynccontextmanager
async def client(engine: Engine, role: str | None = "admin", **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API of this engine, with this role."""
    async with client_of(make_app(engine, auth=by_header, hosts=[HOST]), role, **headers) as made:
        yield made


@dataclass
class Card:
    number: Annotated[str, Secret()]
    holder: str


def register_kinds(engine: Engine) -> None:
    """Kinds for every purpose."""

    @engine.task(api=True, title="Greet {name}")
    async def greet(name: str, times: int = 1) -> str:
        return f"hello {name}" * times

    @engine.task(api=True, key="{customer}")
    async def invoice(customer: str) -> None: ...

    @engine.task(redact=["iban"])
    async def pay(iban: str, card: Card, password: str, note: str = "") -> None:
        raise ValueError(f"cannot pay {iban} with {card.number} and {password}: {note}")

    @engine.task
    async def internal(command: str) -> None: ...

    @engine.task
    async def login(user: str) -> Annotated[str, Secret()]:
        return f"session-of-{user}"

    engine.limit("gpu", 2)
    engine.provider("models", servers=["http://gpu1:8000"])
    engine.schedule("nightly", greet.call("night"), cron="0 3 * * *")


def answered(response: httpx.Response, status: int) -> Any:
    """The JSON of an answer, which has this status."""
    assert response.status_code == status, f"{response.status_code}: {response.text}"
    kind = "application/json" if status < 400 else "application/problem+json"
    assert response.headers["content-type"] == kind
    return response.json()


NewClient = Callable[..., Any]
