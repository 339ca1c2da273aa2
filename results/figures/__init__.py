"""The figures of a run: the numbers each one shows, and how they are drawn."""
