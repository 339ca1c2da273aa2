"""A simulated fleet: the router's own code before modelled engines, under a clock that jumps from event to event."""
