"""Runs at a mediator: the process that coordinates one there, and the client that submits, follows
and queries it.
"""
