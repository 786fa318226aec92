"""Parses and checks what users write: options, settings and arguments."""
