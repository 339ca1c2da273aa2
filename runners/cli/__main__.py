"""`python -m runners.cli`: the `tracon` command."""

from runners.cli import main

main()
