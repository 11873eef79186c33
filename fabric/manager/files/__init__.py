"""What the manager keeps on disk: the books of its Ray cluster, and the record of that one's heads.
Decides nothing, and imports nothing of the manager.
"""
