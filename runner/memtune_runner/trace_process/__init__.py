"""Traces a factory in a process apart, within limits of time and memory; only what runs there imports torch."""
