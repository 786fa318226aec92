"""The routes of kinds: list them with the JSON Schemas of their arguments, and enqueue tasks of those that the code
offers with `api=True`."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

import msgspec
from starlette.responses import Response

from synergon.client.control import current_operator
from synergon.client.node_overview import is_alive
from synergon.model.tasks import RequestKey
from synergon.task import AnyTask
from synergon.web import documents
from synergon.web.access import Role
from synergon.web.inputs import Moment
from synergon.web.json_text import encode
from synergon.web.problems import Problem
from synergon.web.routes import KEY_HEADER, ApiCall, Route

KEY_LENGTH: Final = 255

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


# ---------------------------------------------------------------- JSON Schemas


@cache
def arguments_schema(task_type: AnyTask) -> dict[str, Any]:
    """The JSON Schema of the arguments of a kind. Arguments that it rejects are rejected when a task is enqueued."""
    models: dict[str, Any] = {}

    def schema_of(wanted: type) -> dict[str, Any]:
        """The JSON Schema of a type that msgspec does not know. `models` gets those that it refers to."""
        if hasattr(wanted, "model_json_schema"):
            prefix = f"{wanted.__name__}."
            found: dict[str, Any] = wanted.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
            models.update({prefix + name: model for name, model in found.pop("$defs", {}).items()})
            return found
        is_path = isinstance(wanted, type) and issubclass(wanted, PurePath)
        return {"type": "string"} if is_path else {"description": "Any value."}

    (reference,), components = msgspec.json.schema_components(
        [task_type.signature.arguments_type], schema_hook=schema_of, ref_template="#/$defs/{name}"
    )
    own: dict[str, Any] = components.pop(reference["$ref"].rpartition("/")[2])
    own.pop("title", None)
    definitions = components | models
    return own | {"$defs": definitions} if definitions else own


# ---------------------------------------------------------------- read


async def list_kinds(call: ApiCall) -> Any:
    """All kinds: those of the application of this server, and those of live nodes."""
    nodes = await _nodes_by_kind(call)
    kinds = call.app_engine.kinds
    return {"kinds": [_document(kind, kinds.get(kind), nodes[kind]) for kind in sorted({*kinds, *nodes})]}


async def show_kind(call: ApiCall) -> Any:
    """One kind, with the JSON Schema of its arguments if the API enqueues it."""
    kind, nodes = call.path["kind"], await _nodes_by_kind(call)
    task_type = call.app_engine.kinds.get(kind)
    if task_type is None and kind not in nodes:
        raise _unknown(kind)
    return _document(kind, task_type, nodes[kind])


async def _nodes_by_kind(call: ApiCall) -> Counter[str]:
    return Counter(kind for node in await call.engine.nodes() if is_alive(node) for kind in node.kinds)


def _document(kind: str, task_type: AnyTask | None, nodes: int) -> dict[str, Any]:
    is_offered = task_type is not None and task_type.policy.api
    return {
        "kind": kind,
        "is_registered": task_type is not None,
        "is_offered": is_offered,
        "nodes": nodes,
        "queue": None if task_type is None else task_type.policy.queue,
        "title": None if task_type is None else task_type.policy.title,
        "arguments_schema": arguments_schema(task_type) if task_type is not None and is_offered else None,
    }


# ---------------------------------------------------------------- enqueue


class EnqueueOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of the task, as in `with_options`. All other options are given in the code."""

    queue: Text | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    delay: str | float | None = None
    run_at: Moment | None = None
    expires_in: str | float | None = None
    key: Text | None = None
    on_conflict: Literal["return", "raise", "replace"] | None = None
    unique_for: str | float | None = None
    tags: tuple[Text, ...] | None = None
    meta: dict[str, Any] | None = None


class NewTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of the task by name, and its options."""

    arguments: dict[str, Any] = {}
    options: EnqueueOptions = EnqueueOptions()


async def enqueue_task(call: ApiCall) -> Any:
    """Enqueue a task of a kind that the code offers with `api=True`.

    A repeated request with the header `Idempotency-Key` gets the task of the first one, for 24 hours.
    """
    kind, new = call.path["kind"], call.body
    task_type = call.app_engine.kinds.get(kind)
    if task_type is None:
        raise _unknown(kind)
    if not task_type.policy.api:
        raise Problem(403, f"the API does not enqueue tasks of the kind {kind!r}; its code offers it with api=True")
    options = {name: value for name, value in msgspec.structs.asdict(new.options).items() if value is not None}
    made = task_type.with_options(**options).call(**new.arguments) if options else task_type.call(**new.arguments)
    inserted = await call.engine._enqueuer.enqueue_for(made, current_operator(), _request_key(call, task_type))
    if inserted.is_of_other_request:
        raise Problem(
            422,
            f"this Idempotency-Key was used with other arguments or options, for task {inserted.id}; use a new one",
            task_id=inserted.id,
        )
    answer = {"id": inserted.id, "created": inserted.created}
    return Response(encode(answer), 201 if inserted.created else 200, media_type="application/json")


def _request_key(call: ApiCall, task_type: AnyTask) -> RequestKey | None:
    """The key of the request as it is stored: a digest of the user and the header, so that equal headers of different
    users are different keys."""
    given = call.request.headers.get(KEY_HEADER)
    if given is None:
        return None
    if not 0 < len(given) <= KEY_LENGTH:
        raise Problem(400, f"Idempotency-Key has 1 to {KEY_LENGTH} characters")
    user = hashlib.sha256(f"{call.user.name}\0{given}".encode()).hexdigest()
    said = [_with_defaults(task_type, call.body.arguments), call.body.options]
    digest = hashlib.sha256(msgspec.json.encode(said, enc_hook=repr, order="sorted")).hexdigest()
    return RequestKey(key=f"Idempotency-Key {user}", digest=digest)


def _with_defaults(task_type: AnyTask, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, and the defaults of those that are left out."""
    signature = task_type.signature
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if name not in signature.injected and parameter.default is not parameter.empty
    }
    return defaults | arguments


def _unknown(kind: str) -> Problem:
    return Problem(404, f"there is no kind {kind!r} in the application of this server")


# ---------------------------------------------------------------- the table

ROUTES: Final = (
    Route(method="GET", role=Role.READ, path="/kinds", handle=list_kinds, answer=documents.Kinds),
    Route(
        method="GET",
        role=Role.READ,
        path="/kinds/{kind}",
        handle=show_kind,
        answer=documents.KindDocument,
        problems=(404,),
    ),
    Route(
        method="POST",
        role=Role.OPERATE,
        path="/kinds/{kind}/tasks",
        handle=enqueue_task,
        body=NewTask,
        answer=documents.Enqueued,
        problems=(404, 409, 422),
        status=201,
        other_status=200,
        takes_key=True,
    ),
)
