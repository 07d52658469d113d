"""A real Kubernetes on a bare Debian machine: control plane, nodes, DNS and images from Debian's own packages.

Read in this order: layout (where everything lies and which addresses it has), cluster (what `up` and `down` do),
supervisor (what keeps running), then the module of the part that interests you.
"""
