"""A running node: the parts that claim and run tasks, and the duties beside them."""
