"""The Kubernetes shell of MemTune: it observes jobs, lets core decide, and acts."""
