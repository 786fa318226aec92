"""The figures of synergon beside Huey and bare SQLite, taken in one run on one machine: `python -m benchmarks`."""
