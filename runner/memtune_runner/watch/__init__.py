"""Watches one worker of a run: measures its memory, counts its steps, ends its probe, and always leaves a report."""

from memtune_runner.watch.watched_script import watching

__all__ = ["watching"]
