# mypy: ignore-errors
"""What a type checker must refuse: every line that ends with `# wrong`, and no other.

The first line keeps the usual check away; the test takes it out.
"""

from __future__ import annotations

from synergon import Batch, Context, Engine, Kind, Rate, Retry, Server, injected

engine = Engine("memory://")


@engine.task
async def greet(name: str) -> str:
    return f"hello {name}"


@engine.task(priority=1)
def send(to: str, ctx: Context = injected) -> int:
    return len(to)


@engine.task
async def first_is_the_context(ctx: Context, number: int) -> int:
    return number


gpu = engine.provider("gpu", servers={"http://gpu1": 2})


@gpu.task
async def complete(prompt: str, server: Server = injected) -> str:
    return prompt


@gpu.task
async def first_is_the_server(server: Server, number: int) -> int:
    return number


@gpu.task
async def server_and_context(server: Server, ctx: Context, number: int) -> int:
    return number


@gpu.command
async def load(server: Server, model: str) -> int:
    return len(model)


async def commands() -> None:
    await load.send(5)  # wrong
    await load.send()  # wrong
    load.send_sync("llama", colour="red")  # wrong
    await load.enqueue(5)  # wrong
    load.enqueue_sync(5)  # wrong
    await load.send("llama", to=5)  # wrong
    load.send("llama")  # wrong
    one: int = await load.send("llama", to="each")  # wrong
    each: dict[str, int] = await load.send("llama")  # wrong
    text: dict[str, str] = load.send_sync("llama", to="each")  # wrong
    await load("llama")  # wrong
    gpu.command(priority=1)  # wrong
    await server_and_context.enqueue("three")  # wrong
    await server_and_context.enqueue()  # wrong
    print(one, each, text)


async def groups() -> None:
    group = await engine.group("some", [greet.call("Ada")])
    numbers: list[int] = await group.results()  # wrong
    handles = await engine.enqueue([greet.call("Ada")])
    number: int = await handles[0].result()  # wrong
    await engine.group("some", [greet])  # wrong
    print(numbers, number)


async def providers() -> None:
    await complete.enqueue(5)  # wrong
    await first_is_the_server.enqueue("one")  # wrong
    await first_is_the_server.enqueue()  # wrong
    gpu.task(rates=Rate(1))  # wrong
    gpu.task(rate=10)  # wrong
    gpu.task(limits=5)  # wrong
    engine.limit("license", "many")  # wrong
    await engine.set_limit("license", rate=5)  # wrong
    await gpu.set_servers(5)  # wrong
    engine.provider("gpu", on_start=5)  # wrong
    Rate("ten")  # wrong
    text: int = await (await complete.enqueue("a")).result()  # wrong
    print(text)


@engine.task(batch=Batch(size=2))
async def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


async def batches() -> None:
    await lengths.enqueue(["a list"])  # wrong
    await lengths.enqueue(1)  # wrong
    await lengths.enqueue()  # wrong
    number: str | None = await (await lengths.enqueue("a")).result()  # wrong
    print(number)
    engine.task(batch=2)  # wrong
    engine.task(batch=Batch(size=2))(greet.function)  # wrong
    Batch(2)  # wrong


async def arguments() -> None:
    await greet.enqueue(1)  # wrong
    await greet.enqueue()  # wrong
    await greet.enqueue("Ada", "Bob")  # wrong
    await greet.enqueue(nmae="Ada")  # wrong
    await greet.delay(1)  # wrong
    greet.enqueue("Ada")  # wrong
    greet.delay("Ada")  # wrong
    await greet.with_options(priority=1).enqueue(1)  # wrong
    greet.call(None)  # wrong
    greet.enqueue_sync(1)  # wrong
    await send.enqueue(to=b"bytes")  # wrong
    await first_is_the_context.enqueue("one")  # wrong
    await first_is_the_context.enqueue()  # wrong
    await greet(1)  # wrong
    first_is_the_context.call(number=1, colour="red")  # wrong


async def options() -> None:
    greet.with_options(prioritty=1)  # wrong
    greet.with_options(priority="high")  # wrong
    greet.with_options(on_conflict="ignore")  # wrong
    greet.with_options(max_running=1)  # wrong
    greet.call("x").with_options(delay=[])  # wrong
    engine.task(prioritty=1)  # wrong
    engine.task(delay=1)  # wrong
    engine.task(runs_in="orbit")  # wrong
    Engine("memory://", concurency=1)  # wrong
    engine.worker(concurency=1)  # wrong
    Retry(attempts="many")  # wrong
    engine.explain("one")  # wrong
    Kind(str, runs_in="process")  # wrong
    Kind(str, cost=1)  # wrong


async def results() -> None:
    number: int = await (await greet.enqueue("Ada")).result()  # wrong
    text: str = (await send.enqueue("a@b.c")).result_sync()  # wrong
    many: list[str] = await (await first_is_the_context.enqueue(1)).result()  # wrong
    (await greet.enqueue("Ada")).reslut()  # wrong
    await engine.enqueue([greet])  # wrong
    print(number, text, many)


async def flows() -> None:
    flow = engine.flow("import")
    numbers = flow.add(first_is_the_context.call(1))
    name = flow.add(greet.call("Ada"))
    flow.add(greet.call(numbers.result))  # wrong
    flow.add(first_is_the_context.call(name.result))  # wrong
    flow.add(greet)  # wrong
    flow.add(greet.call("Ada"), after=["one"])  # wrong
    flow.add(greet.call("Ada"), after=numbers)  # wrong
    flow.add(greet.call("Ada"), if_dependency_fails="ignore")  # wrong
    flow.map(greet.call("Ada"), over=numbers)  # wrong
    flow.map(send, over=numbers.result)  # wrong
    flow.add(first_is_the_context.call(flow.map(send, over=numbers).results))  # wrong
    greet.with_options(after=["one"])  # wrong
    greet.with_options(if_dependency_fails="ignore")  # wrong
