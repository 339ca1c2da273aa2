"""The fewest instances that hold a latency objective, per policy, from simulated points."""
