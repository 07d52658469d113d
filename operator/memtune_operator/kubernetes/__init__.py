"""The Kubernetes backend: the API client, its watch caches, leader election, nodes, pod creation and ConfigMaps."""
