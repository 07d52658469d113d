"""Reads the command of a job and makes the commands of its ranks."""
