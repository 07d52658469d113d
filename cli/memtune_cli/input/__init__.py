"""Where commands read a job from: files, a cluster, a state directory."""
