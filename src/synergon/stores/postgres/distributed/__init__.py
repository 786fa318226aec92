"""What differs on PostgreSQL-compatible distributed databases."""
