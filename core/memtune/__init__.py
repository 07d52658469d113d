"""MemTune's domain: what a training step costs in GPU memory, and which plan to run.

Pure: no Kubernetes, no Optuna, no torch, no clock, no I/O. Every function gives equal output for equal input.
"""

__version__ = "0.1.0"
