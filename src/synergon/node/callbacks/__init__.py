"""Functions of users that are not task functions: hooks, subscribers, idle hooks."""
