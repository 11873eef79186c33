"""Decide how a round goes: its pieces of work, the sites it waits for, its cost, when to stop."""
