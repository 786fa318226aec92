"""The primitives of a session for the stores with SQL: SQLite and PostgreSQL run these modules with statements of their
own, which have the same names, parameters and columns. What differs is a subclass in the package of the store."""
