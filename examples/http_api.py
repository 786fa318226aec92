"""The HTTP API in a web application: one kind is offered, secrets are hidden, and every change has its caller.

A real application is served by uvicorn, and callers use curl; here a test client takes the part of both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from synergon import Engine, Secret
from synergon.web.access import Role, User

engine = Engine("memory://")

TOKENS = {"token-of-the-shop": User("shop", Role.OPERATE), "token-of-a-screen": User("screen", Role.READ)}
"""In a real application: `synergon.web.credentials.Credentials("web.toml")`, which has digests of random tokens."""


@engine.task(api=True, title="Charge {customer}")
async def charge(customer: str, card: Annotated[str, Secret()]) -> str:
    return f"{customer} has paid with the card that ends in {card[-4:]}"


@engine.task
async def internal_cleanup() -> None: ...


def auth(request: Request) -> User | None:
    return TOKENS.get(request.headers.get("authorization", "").removeprefix("Bearer "))


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    async with engine:
        yield


app = Starlette(lifespan=lifespan, routes=[Mount("/tasks", app=engine.api(auth=auth))])


def main() -> None:
    shop = {"Authorization": "Bearer token-of-the-shop"}
    screen = {"Authorization": "Bearer token-of-a-screen"}
    with TestClient(app, base_url="http://localhost/tasks/api/v1/") as http:
        order = {"arguments": {"customer": "Ada", "card": "4111 1111 1111 1111"}}
        key = {"Idempotency-Key": "order-4711"}
        first = http.post("kinds/charge/tasks", json=order, headers={**shop, **key})
        again = http.post("kinds/charge/tasks", json=order, headers={**shop, **key})
        print("enqueued:", first.status_code, first.json())
        print("repeated:", again.status_code, again.json())
        print("not offered:", http.post("kinds/internal_cleanup/tasks", json={}, headers=shop).json()["detail"])

        task = http.get(f"tasks/{first.json()['id']}", headers=screen).json()
        print("what a reader sees:", task["title"], task["arguments"])
        print("a reader cannot cancel:", http.post(f"tasks/{task['id']}/cancel", json={}, headers=screen).status_code)
        print("nobody is refused:", http.get("tasks").status_code)
        http.post(f"tasks/{task['id']}/cancel", json={"why": "out of stock"}, headers=shop)
        for action in http.get("audit", headers=screen).json()["actions"]:
            print("audit:", action["who"], action["verb"], action["subject"], "-", action["outcome"])


if __name__ == "__main__":
    main()
