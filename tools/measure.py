"""`make measure`: how much code a reader meets. Counts and no times, so that two runs can be compared.

The walk of a plain task is traced: on SQLite, worker in the same process, from `enqueue` to `result`, on all threads.
The rest is counted in the source text.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import synergon
from synergon import Engine

SOURCE: Final = Path(synergon.__file__).parent
WALKS: Final = 5
INLINED: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Newer versions of Python run most of these without a frame of their own, so they count on none."""
NOUNS: Final = frozenset({"listing", "string", "warning"})
"""Words in -ing that name a thing."""
OUTSIDE: Final = re.compile(
    r"_(rooms?|lanes?|seats?|settlements?|settled|body|bodies|resting|demands?|holdings?|kept|places?"
    r"|standing|pace)(?=_)"
)
"""Words that the glossary replaces by others."""
EXEMPT: Final = frozenset({"KEPT"})
"""Names in which such a word has another meaning: `Table.KEPT` of `stores.columns` has to do with no reservation."""
STATEMENT_OR_COLUMN: Final = re.compile(r"^(?:-- name: |    )([a-z_]+)(?=$| +[A-Za-z]+\b)", re.MULTILINE)
HTTP: Final = ("peering/", "web/", "node/health/", "cli/health", "cli/supervisor_health")
"""Packages and modules in which a body is that of a request over HTTP, and no task function."""


# ------------------------------------------------------------ the walk of a task


@dataclass(slots=True)
class Walk:
    """The functions of the package that were entered, in the order of their first call."""

    calls: Counter[CodeType] = field(default_factory=Counter)
    """How often each was entered. A coroutine that goes on after an `await` is entered again."""

    @property
    def files(self) -> list[str]:
        """The files of these functions, in the order of their first call."""
        return list(dict.fromkeys(code.co_filename for code in self.calls))


class Tracer:
    """Notes calls of functions of the package on every thread that starts after `install`."""

    def __init__(self, source: Path) -> None:
        self._prefix = f"{source}/"
        self._walk: Walk | None = None

    def install(self) -> None:
        """Profile this thread and all that start from now on; nothing is noted yet."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def remove(self) -> None:
        """Profile no new threads, nor this one."""
        sys.setprofile(None)
        threading.setprofile(None)

    def begin(self) -> None:
        """Note calls from now on."""
        self._walk = Walk()

    def end(self) -> Walk:
        """Note no more; all calls since `begin`."""
        walk, self._walk = self._walk, None
        assert walk is not None
        return walk

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        walk, code = self._walk, frame.f_code
        if walk is None or event != "call" or code.co_name in INLINED:
            return
        if code.co_filename.startswith(self._prefix):
            walk.calls[code] += 1


async def walk_of_a_task(folder: Path) -> Walk:
    """The shortest of some walks of a plain task: what else a node does meanwhile only adds to one."""
    tracer = Tracer(SOURCE)
    engine = Engine(f"sqlite:///{folder / 'measure.db'}")

    @engine.task
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    tracer.install()
    try:
        async with engine, engine.worker():
            await (await greet.enqueue("Ada")).result(timeout=30)  # what is imported and compiled once is not counted
            walks = []
            for _ in range(WALKS):
                tracer.begin()
                handle = await greet.enqueue("Ada")
                await handle.result()
                walks.append(tracer.end())
    finally:
        tracer.remove()
    return min(walks, key=lambda walk: walk.calls.total())


# ------------------------------------------------------------ the source text


def modules(source: Path) -> dict[Path, ast.Module]:
    """All modules, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(source.rglob("*.py"))}


def callable_names(trees: Iterable[ast.Module]) -> set[str]:
    """`Callable`, its aliases, and protocols whose instances are called."""
    statements = [statement for tree in trees for statement in tree.body]
    names = {"Callable", *(node.name for node in statements if isinstance(node, ast.ClassDef) and _is_protocol(node))}
    aliases = dict(pair for statement in statements for pair in _assignments(statement))
    while more := {name for name, value in aliases.items() if name not in names and _is_callable(value, names)}:
        names |= more
    return names


def _is_protocol(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    return "Protocol" in bases and any(
        isinstance(part, ast.FunctionDef) and part.name == "__call__" for part in node.body
    )


def _assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value


def _is_callable(annotation: ast.expr, names: set[str]) -> bool:
    """Whether it is one of these, perhaps with arguments, or a union that has one."""
    match annotation:
        case ast.Name(id=name):
            return name in names
        case ast.Subscript(value=value):
            return _is_callable(value, names)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_callable(left, names) or _is_callable(right, names)
    return False


def callables_by_class(trees: Iterable[ast.Module], names: set[str]) -> Counter[str]:
    """How many callables the constructor of each class is given; `names` are the types that count as such."""
    found: Counter[str] = Counter()
    for owner in _classes(trees):
        for part in owner.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                given = [*part.args.posonlyargs, *part.args.args, *part.args.kwonlyargs]
                found[owner.name] += sum(_is_callable(one.annotation, names) for one in given if one.annotation)
    return +found


def casts_of_self(trees: Iterable[ast.Module]) -> Counter[str]:
    """How often each class casts itself to another."""
    found: Counter[str] = Counter()
    for owner in _classes(trees):
        for node in ast.walk(owner):
            match node:
                case ast.Call(func=ast.Name(id="cast"), args=[_, ast.Name(id="self")]):
                    found[owner.name] += 1
    return found


def _classes(trees: Iterable[ast.Module]) -> Iterator[ast.ClassDef]:
    return (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def gerunds(paths: Iterable[Path]) -> list[str]:
    """The modules that are named by a gerund, once for each; packages are not asked."""
    return sorted(path.stem for path in paths if any(_is_gerund(word) for word in path.stem.split("_")))


def _is_gerund(word: str) -> bool:
    return word.endswith("ing") and word not in NOUNS


def names_outside(trees: Mapping[Path, ast.Module], source: Path) -> list[str]:
    """Names that are defined in Python or SQL and contain a word that the glossary replaces, once for each."""
    names = {
        name
        for path, tree in trees.items()
        for name in _defined(tree)
        if not (_speaks_http(path, source) and _words_outside(name) == ["body"])
    }
    for path in source.rglob("*.sql"):
        names.update(STATEMENT_OR_COLUMN.findall(path.read_text(encoding="utf-8")))
    return sorted(name for name in names - EXEMPT if _words_outside(name))


def _words_outside(name: str) -> list[str]:
    return OUTSIDE.findall(f"_{_with_underscores(name)}_")


def _speaks_http(path: Path, source: Path) -> bool:
    return path.relative_to(source).as_posix().startswith(HTTP)


def _with_underscores(name: str) -> str:
    return re.sub(r"([A-Z][a-z])", r"_\1", name).lower()


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.arg(arg=name)
            ):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def lines(source: Path, pattern: str) -> int:
    """How many lines the files of this name have."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in source.rglob(pattern))


# ------------------------------------------------------------ the table


def figures(walk: Walk) -> dict[str, tuple[int, str]]:
    """Every figure by its name, with a remark."""
    trees = modules(SOURCE)
    given = callables_by_class(trees.values(), callable_names(trees.values()))
    outright = callables_by_class(trees.values(), {"Callable"})
    casts, named, outside = casts_of_self(trees.values()), gerunds(trees), names_outside(trees, SOURCE)
    python, sql = lines(SOURCE, "*.py"), lines(SOURCE, "*.sql")
    return {
        "walk of a plain task: calls": (walk.calls.total(), "enqueue to result, SQLite, all threads"),
        "walk of a plain task: functions": (len(walk.calls), ""),
        "walk of a plain task: files": (len(walk.files), "--walk shows them"),
        "callables given to constructors": (given.total(), _most(given)),
        "classes that are given callables": (
            len(given),
            f"without aliases {outright.total()} in {len(outright)} classes",
        ),
        "casts of self": (casts.total(), _most(casts)),
        "source files": (len(trees), "*.py"),
        "source lines": (python + sql, f"Python {python}, SQL {sql}"),
        "modules named by a gerund": (len(named), ", ".join(dict.fromkeys(named))),
        "names outside the glossary": (len(outside), ", ".join(outside)),
    }


def _most(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted.most_common(4))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.measure", description=__doc__)
    parser.add_argument("--walk", action="store_true", help="also list the functions of the walk, file by file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        walk = asyncio.run(walk_of_a_task(Path(folder)))
    for name, (value, remark) in figures(walk).items():
        print(f"{name:<34}{value:>8,}  {remark}".rstrip())
    if arguments.walk:
        for file in walk.files:
            entered = dict.fromkeys(code.co_qualname for code in walk.calls if code.co_filename == file)
            print(f"\n{Path(file).relative_to(SOURCE)}\n    {', '.join(entered)}")


if __name__ == "__main__":
    main()
