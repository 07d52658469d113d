"""The GPU day: preparation, three commands to run on a machine with a GPU, and collection of the results.

Uses only the standard library, so that it starts with a bare Python.
"""
