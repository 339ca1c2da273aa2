"""Kills, stops and starves the processes of real runs at random moments, and counts what is left."""
