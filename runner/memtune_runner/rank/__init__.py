"""The state of one rank: settings, phases, progress, probe, failure and report."""
