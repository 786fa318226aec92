"""What the tests of the documentation share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.docs.programs import Programs


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Runs programs in interpreters that are warm already."""
    programs = Programs(tmp_path_factory.mktemp("programs"))
    yield programs
    programs.close()
