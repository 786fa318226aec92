"""`python -m synergon` runs the command line."""

from synergon.cli.main import main

main()
