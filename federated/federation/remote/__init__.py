"""Runs at a mediator, from both ends: the process that coordinates one there, and the client that
submits, follows and asks it.
"""
