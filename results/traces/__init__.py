"""What a trace is made of: lengths, reuse of prefixes, skew of sessions, room for its KV, as numbers and figures."""
