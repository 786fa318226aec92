"""Checks the types of the package as users get it: `python -m tools.type_completeness` in `make check`.

pyright reads a copy of the package, because it leaves an editable installation out, and reports how many of its symbols
have a known type. Symbols are ambiguous if another type checker could infer another type; annotate these.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

LEAST: Final = 0.98
"""The share of symbols that must have a known type."""
LISTED: Final = 20
ROOT: Final = Path(__file__).resolve().parents[1]
BIN: Final = Path(sys.executable).parent


def report() -> dict[str, Any]:
    """What pyright finds out about the package."""
    with tempfile.TemporaryDirectory(prefix="synergon-types-") as folder:
        shutil.copytree(ROOT / "src" / "synergon", Path(folder) / "synergon")
        ended = subprocess.run(
            [BIN / "pyright", "--verifytypes", "synergon", "--ignoreexternal", "--outputjson"],
            cwd=folder,
            env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", "PYTHONPATH": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    found: dict[str, Any] = json.loads(ended.stdout)["typeCompleteness"]
    return found


def main() -> int:
    """Print the share of known types, and symbols without one if there are too many. Returns the exit code."""
    found = report()
    score: float = found["completenessScore"]
    print(f"{score:.1%} of {sum(found['exportedSymbolCounts'].values())} symbols have a known type")
    if score >= LEAST:
        return 0
    print(f"at least {LEAST:.0%} must have one; annotate, for instance:")
    causes = [
        f"  {symbol['name']}: {diagnostic['message'].splitlines()[0]}"
        for symbol in found["symbols"]
        for diagnostic in symbol["diagnostics"]
        if diagnostic["message"].startswith(("Type is missing", "Ambiguous"))
    ]
    print(*causes[:LISTED], sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
