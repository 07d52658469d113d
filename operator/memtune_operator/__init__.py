"""The MemTune operator: watches jobs, asks the core for a decision and carries it out."""
