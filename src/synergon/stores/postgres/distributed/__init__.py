"""The distributed profile of the PostgreSQL store: what differs on PostgreSQL-compatible distributed databases."""
