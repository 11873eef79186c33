"""The site agent: joins a mediator, takes its orders, and looks after the runs' runners.

Importing this package imports neither Ray nor torch, and running it does not either.
"""
