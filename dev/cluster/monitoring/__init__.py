"""Prometheus and a dashboards page beside the dev cluster, on request.

Reading order: lifecycle (start and stop), prometheus, targets (pod discovery), page (build), dashboards (server).
"""
