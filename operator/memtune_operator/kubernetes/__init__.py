"""The Kubernetes backend: the API client, its watch cache, leader election, pod creation and reading."""
