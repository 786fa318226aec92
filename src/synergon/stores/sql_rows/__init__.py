"""The primitives of a session for the stores with SQL: SQLite and PostgreSQL run these modules with their own
statements, which agree in names, parameters and columns. Where a store differs, its package has a subclass."""
