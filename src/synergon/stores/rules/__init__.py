"""The rules of the stores, written once over the session port: what a store decides from the rows that it has locked
and read."""
