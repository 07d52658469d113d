"""What the operator and a pod tell each other: variables, runs, reports, traces."""
