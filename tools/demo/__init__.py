"""`make demo`: a job that is predicted, probed, launched, runs out of memory and recovers.

It runs on a cluster if there is one, and otherwise as processes of this machine. Reading order: ways (the choices and
the selection), __main__ (preparation), local (without a cluster), on_cluster (with one) and clusters (their
differences). ways, __main__ and terminal run before .venv exists, with only the standard library.
"""
