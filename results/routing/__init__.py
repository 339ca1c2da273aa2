"""The `routing` experiment's artifacts and analysis: which policy really wins, and by how much."""
