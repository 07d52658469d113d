"""Starts the ranks of one node, ends them together with those of the other nodes, and reports."""
