"""Runs at a mediator: the process that coordinates one, the client that submits and queries it."""
