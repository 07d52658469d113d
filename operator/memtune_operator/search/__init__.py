"""The Optuna study: sampler, pruner, and the trials of a job."""
