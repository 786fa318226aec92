"""The parts of an engine: they enqueue tasks, wait for results, run operations and read events."""
