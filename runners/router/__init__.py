"""The cache-aware router: policies, what it knows of the cluster, and the streaming proxy."""
