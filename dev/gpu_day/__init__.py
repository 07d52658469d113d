"""A day with a GPU: what is prepared before it, three commands on the machine that has it, what is made of the results.

Needs the standard library alone, so that it starts on a bare Python.
"""
