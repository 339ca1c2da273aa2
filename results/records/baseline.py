"""The config that every tax is measured against, and its second name. Imports nothing: a plan needs these names too."""

BASELINE = "plain"
REPEAT = "plain_again"
"""The baseline under a second name: its difference from BASELINE is noise, never the tax of a connector."""
