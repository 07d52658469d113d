"""What one rank of a run knows of itself: its settings, phases, progress, probe and report."""
