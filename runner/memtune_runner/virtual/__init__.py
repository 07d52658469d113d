"""The virtual GPU: CPU tensors, counted as a GPU would count them."""
