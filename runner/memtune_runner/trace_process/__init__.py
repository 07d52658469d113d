"""Traces a factory in a subprocess with limits of time and memory; only the subprocess imports torch."""
