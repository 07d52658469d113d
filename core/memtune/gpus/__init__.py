"""GPUs before anything ran on them: memory, rates and chips, and the product names that nodes advertise."""
