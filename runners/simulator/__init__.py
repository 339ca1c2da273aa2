"""A simulated fleet: the router's own code before modeled engines, under a clock that jumps from event to event."""
