"""What serves developers, and nobody else."""
