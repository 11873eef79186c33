"""Runners: a run's part at one site as a process, and its drivers.

Importing this package does not import Ray; the process does, once it runs.
"""
