"""`python -m synergon`: the command line."""

from synergon.cli.main import main

main()
