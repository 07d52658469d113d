"""Reads jobs for the subcommands: from files, a cluster or a state directory."""
