"""Predicts the GPU memory, host memory and step time of a plan."""
