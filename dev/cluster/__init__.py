"""The dev cluster: a real Kubernetes on a bare Debian machine, from Debian's own packages.

docs/devcluster.md has a reading order.
"""
