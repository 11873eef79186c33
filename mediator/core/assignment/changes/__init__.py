"""What changes an assignment while a run goes on, and which replicas prepare for that. Pure.

No strategy uses this room. It knows strategies, and what a round costs.
"""
