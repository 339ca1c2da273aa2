"""The cache-aware router: policies, the cluster's state, and the streaming proxy."""
