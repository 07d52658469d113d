"""What a plan needs: predictions of GPU and host memory and of the step time."""
