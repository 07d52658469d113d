"""The operator of MemTune: it observes jobs, lets the core decide, and acts."""
