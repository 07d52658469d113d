"""The device of a rank: memory counters and driver."""
