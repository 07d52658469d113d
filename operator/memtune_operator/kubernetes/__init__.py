"""The Kubernetes API: the client, its cache, the Lease, and Kubernetes as the backend of jobs."""
