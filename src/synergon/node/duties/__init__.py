"""Background duties of a node, one module each."""
