"""What the tests of the documentation share."""

from __future__ import annotations

import pytest
from tests.docs.programs import Programs


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Runs programs in interpreters that are warm already."""
    return Programs(tmp_path_factory.mktemp("programs"))
