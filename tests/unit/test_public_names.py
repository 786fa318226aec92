"""The public surface, pinned: a change here is a change for users."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import synergon
from synergon import errors

NAMES = [
    "AttemptOutcome",
    "AttemptRecord",
    "AuditRecord",
    "Batch",
    "BatchErrors",
    "BatchItem",
    "Call",
    "CallNext",
    "CallOptions",
    "Cancel",
    "Candidate",
    "Cause",
    "ClusterStatus",
    "Command",
    "CommandsFailed",
    "ConfigurationError",
    "Context",
    "DataRejected",
    "Dependency",
    "Discard",
    "Engine",
    "ErrorCount",
    "ErrorRecord",
    "Event",
    "EventsLost",
    "Explanation",
    "Flow",
    "FlowPage",
    "FlowRecord",
    "FlowRun",
    "FlowStep",
    "Group",
    "GroupRecord",
    "Handle",
    "Health",
    "Histogram",
    "IllegalMove",
    "KeyConflict",
    "Kind",
    "KindAge",
    "KindError",
    "LimitRecord",
    "MapStep",
    "NameNotFound",
    "NodeOutlook",
    "NodeRecord",
    "NodeStatus",
    "NotAvailable",
    "NotConnected",
    "Occurrence",
    "OptionError",
    "PayloadError",
    "PermissionDenied",
    "Progress",
    "Provider",
    "ProviderTask",
    "QueueRecord",
    "QueueStatus",
    "Rate",
    "Reason",
    "Resources",
    "ResultTimeout",
    "Retention",
    "Retry",
    "RetryAfter",
    "ScheduleError",
    "ScheduleExists",
    "ScheduleExplanation",
    "ScheduleNotFound",
    "ScheduleRecord",
    "SchemaError",
    "Secret",
    "Server",
    "ServerEvent",
    "ServerFailed",
    "ServerRecord",
    "Snooze",
    "State",
    "Statistics",
    "StatisticsPoint",
    "Step",
    "StoreError",
    "StoreUnavailable",
    "SynergonError",
    "TaskCancelled",
    "TaskDeleted",
    "TaskError",
    "TaskFailed",
    "TaskLogFilter",
    "TaskNotFound",
    "TaskPage",
    "TaskRecord",
    "TaskType",
    "UnfinishedTask",
    "Why",
    "WorkerStatus",
    "injected",
]

RECORD_FIELDS = """
id kind queue state reason priority run_at attempts max_attempts crashes claim_no node_id server
enqueued_at started_at finished_at result error errors ended_attempts attempts_made progress key title tags meta
"""


def test_the_public_names_are_these() -> None:
    assert synergon.__all__ == NAMES
    for name in NAMES:
        assert hasattr(synergon, name)


def test_a_record_of_a_task_has_the_promised_fields() -> None:
    for name in RECORD_FIELDS.split():
        assert hasattr(synergon.TaskRecord, name), name


OPTIONAL = (
    "aiohttp",
    "asyncpg",
    "httptools",
    "opentelemetry",
    "psutil",
    "pydantic",
    "pytest",
    "sentry_sdk",
    "sqlite3",
    "starlette",
    "uvicorn",
    "uvloop",
)
"""Libraries that only some parts of synergon need."""
PARTS = (
    "explain.explainer",
    "node",
    "peering",
    "stores.memory",
    "stores.postgres",
    "stores.sqlite",
    "testing",
    "web",
    "worker",
)
"""Parts that are loaded when a worker starts, a store is opened or a task is explained."""


def loaded_by(statement: str) -> set[str]:
    """The modules that a new process has loaded after the statement."""
    script = f"import sys; {statement}; print(*sorted(sys.modules), sep='\\n')"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_an_import_loads_neither_the_node_nor_peering_nor_a_store_nor_the_command_line() -> None:
    unwanted = {*OPTIONAL, *(f"synergon.{part}" for part in PARTS), "synergon.cli", "click", "rich", "typer"}
    loaded = loaded_by("import synergon")
    assert "synergon.engine" in loaded
    assert loaded & unwanted == set()


def test_the_help_of_the_command_line_loads_neither_the_node_nor_peering_nor_a_store() -> None:
    unwanted = {*OPTIONAL, *(f"synergon.{part}" for part in PARTS)}
    loaded = loaded_by("from synergon.cli.main import run; assert run(['--help']) == 0")
    assert "synergon.cli.main" in loaded
    assert loaded & unwanted == set()


def test_everything_that_is_raised_has_one_root() -> None:
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(error, errors.SynergonError | errors.Control), error


def test_what_a_body_raises_to_end_is_no_error_of_ours() -> None:
    """`except SynergonError` in a body must not swallow what the body itself says."""
    for control in (synergon.Cancel, synergon.Discard, synergon.RetryAfter, synergon.Snooze):
        assert not issubclass(control, synergon.SynergonError)


def test_errors_are_also_what_python_programmers_expect() -> None:
    assert issubclass(synergon.ConfigurationError, ValueError)
    assert issubclass(synergon.PayloadError, ValueError)
    assert issubclass(synergon.ResultTimeout, TimeoutError)


def test_the_package_says_that_it_is_typed() -> None:
    files = importlib.metadata.files("synergon") or []
    assert any(path.name == "py.typed" for path in files) or (
        importlib.import_module("importlib.resources").files("synergon").joinpath("py.typed").is_file()
    )
