"""A Prometheus and a page of dashboards beside the cluster, for whoever asks for them.

Read in this order: lifecycle (how they are started and ended), prometheus, targets (the pods that it is told of), page
(how it is built), dashboards (who serves it).
"""
