"""Runs a training command on an emulated GPU: torch, its allocator and everything above the driver are real."""
