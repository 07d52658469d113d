"""The local backend (`memtune run`): runs are processes of this machine instead of pods."""
