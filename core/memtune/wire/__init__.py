"""The protocol between operator and pod: environment variables, runs, names, reports and traces."""
