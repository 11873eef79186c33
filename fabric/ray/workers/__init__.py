"""Workers of a gang: placement groups that end with this process, actors on them, and how calls
travel to an actor and back. Knows nothing of how this process came to its Ray.
"""
