"""Runners: a run's part at one site as a process, and how it is driven.

Importing this package imports no Ray: that is what the process does when it is started.
"""
