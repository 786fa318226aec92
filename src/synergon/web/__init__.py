"""The HTTP API of an engine, and what the dashboard shares with it: access, redaction and the table of routes. It needs
the extra `web`; nothing else in synergon imports it when it is loaded."""
