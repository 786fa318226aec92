"""A worker of `pool_bodies`, which ends with its starter."""

from __future__ import annotations

from tests.cluster.apps.faults_worker import main
from tests.cluster.apps.pool_bodies import engine

if __name__ == "__main__":
    main(engine)
