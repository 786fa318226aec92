"""Integrations with other frameworks. Each is imported by name, and imports its framework."""
