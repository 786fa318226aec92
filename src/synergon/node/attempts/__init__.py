"""Runs attempts: from the claim to the outcome that the store receives."""
