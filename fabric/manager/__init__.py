"""The manager of a Ray cluster, an actor: it admits virtual clusters, makes Ray agree with its
state, routes work to placement groups, and keeps its ledger in a file.
"""
