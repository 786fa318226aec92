"""Attempts: runs them, from a claim to the outcome that the store receives."""
