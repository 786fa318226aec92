"""A running node, one file per duty."""
