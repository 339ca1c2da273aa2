"""Traces: recorded or made-up requests of sessions, read, described, changed and replayed."""
