"""Known GPUs: memory, rates and chips, and the product names that nodes advertise."""
