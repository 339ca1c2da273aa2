"""What became of one request that is prefilled here and decoded there: its stamps, its phases, and their models."""
