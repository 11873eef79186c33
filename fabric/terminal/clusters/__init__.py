"""Describes virtual clusters and jobs, as the manager's documents have them, to people."""
