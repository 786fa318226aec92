"""synergon and others on PostgreSQL, each worker and each producer in a process of its own, on servers with the same
settings."""
