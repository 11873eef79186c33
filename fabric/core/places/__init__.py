"""Decide where virtual clusters get their places: who is admitted, which machines carry what,
what is borrowed, which placement groups hold it.
"""
