"""Runs a training command on a GPU that is not there: torch, its allocator and all above the driver are real."""
