"""A web application that hands slow work to a queue: HTTP in front, a worker in the same process.

    POST /thumbnails?image=cat     202 and the task's id, as soon as the task is durable
    GET  /tasks/<id>               its state, progress and result

The server is the standard library's; each of its threads uses the synchronous calls of the engine. This script is
its own visitor and ends by itself.
"""

import asyncio
import json
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from synergon import Context, Engine, Handle, TaskNotFound, injected

folder = tempfile.TemporaryDirectory()
engine = Engine(f"sqlite:///{folder.name}/web.db")


@engine.task
def make_thumbnail(image: str, ctx: Context = injected) -> str:
    for step in range(1, 4):
        time.sleep(0.1)
        ctx.progress(step / 3, f"step {step} of 3")
    return f"{image}-small.png"


class Application(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        image = parse_qs(urlsplit(self.path).query)["image"][0]
        handle = make_thumbnail.enqueue_sync(image)
        self.answer(202, {"task": handle.id})

    def do_GET(self) -> None:
        task_id = int(self.path.rpartition("/")[2])
        try:
            record = Handle[Any](engine, task_id).status_sync()
        except TaskNotFound as error:
            self.answer(404, {"error": str(error)})
            return
        progress = record.progress.fraction if record.progress else 0.0
        self.answer(200, {"state": record.state, "progress": progress, "result": record.result})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_: Any) -> None:
        """Stay quiet: the visitor prints what happens."""


def visit(address: str) -> None:
    """What a browser would do."""
    tasks = [ask(f"{address}/thumbnails?image={name}", "POST")["task"] for name in ("cat", "dog", "owl")]
    print(f"three images were accepted as tasks {tasks}")
    for task in tasks:
        while (answer := ask(f"{address}/tasks/{task}"))["state"] not in ("succeeded", "failed"):
            time.sleep(0.05)
        print(f"task {task}: {answer}")
        assert answer["state"] == "succeeded"
        assert answer["result"].endswith("-small.png")


def ask(url: str, method: str = "GET") -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


async def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Application)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    async with engine, engine.worker(concurrency=8):
        await asyncio.to_thread(visit, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    with folder:
        asyncio.run(main())
