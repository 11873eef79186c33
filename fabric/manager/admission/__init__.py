"""Admits virtual clusters, takes their places back and finds places for what they lost: changes the
state, and has the placement groups follow. Never looks at Ray: the reconciler says what it found.
"""
