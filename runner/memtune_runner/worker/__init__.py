"""One rank: its settings, its process, its report."""
