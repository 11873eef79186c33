"""Decide how a round goes: its pieces of work, whom it waits for, what it costs, and when to
stop.
"""
