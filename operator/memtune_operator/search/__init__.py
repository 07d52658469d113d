"""The plan search with Optuna: sampler, pruner, and the study of a job."""
