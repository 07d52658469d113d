"""A real Kubernetes on a bare Debian machine: control plane, nodes, DNS and images from Debian's own packages.

docs/devcluster.md says in which order to read it.
"""
