"""`make demo`: a job that is predicted, probed, launched, runs out of memory and recovers.

It is shown on a cluster if there is one, and otherwise with processes of this machine. Read in this order: ways (which
there are, and which is chosen), __main__ (how it is prepared), local (without a cluster), on_cluster (with one) and
clusters (how they differ). ways, __main__ and terminal run before .venv is made, with the standard library alone.
"""
