"""Builds the pods of a run and their companion objects from the job's template, and reads what became of them."""
