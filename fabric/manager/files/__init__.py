"""What the manager keeps on disk: the state of its Ray cluster, and the record of its heads.
Decides nothing, and imports nothing of the manager.
"""
