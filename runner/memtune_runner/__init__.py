"""The part of MemTune that lives inside the training pods: makes a plan real, measures memory, always reports."""
