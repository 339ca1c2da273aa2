"""KV transfers between instances: a session's prefix to its next instance, or a prompt from prefill to decode.

`transfers.Transfers` starts a transfer and returns a `movement.Movement` with its state. docs/transfer.md.
"""
