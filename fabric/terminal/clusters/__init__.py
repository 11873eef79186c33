"""Describes virtual clusters and jobs in words and tables, from the manager's documents."""
