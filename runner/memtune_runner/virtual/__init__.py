"""The virtual GPU: CPU tensors, counted as on a GPU."""
