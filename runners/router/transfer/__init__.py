"""Moving KV between instances: a session's prefix to where it is served next, or a prompt from prefill to decode.

`transfers.Transfers` moves it, and reports in the `movement.Movement` it returns. docs/transfer.md.
"""
