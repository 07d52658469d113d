"""Runs as processes of this machine instead of pods."""
