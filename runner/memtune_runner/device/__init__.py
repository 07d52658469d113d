"""The device of a rank: the counters of its memory, and its driver."""
