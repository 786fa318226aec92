"""The parts of an engine: enqueueing, operations, results, events."""
