"""Parses the job's command and builds the commands of its ranks."""
