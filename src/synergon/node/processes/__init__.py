"""Threads and child processes for task functions."""
