"""Scripts for contributors: they look at the code and change nothing."""
