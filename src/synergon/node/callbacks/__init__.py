"""Calls user functions that are not task functions: hooks, subscribers, idle hooks."""
