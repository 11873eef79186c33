"""Declared Ray clusters that run already: they are observed, and never started, scaled or ended.

`observed` is pure: what Ray's nodes say of such a cluster. `existing_cluster` asks its control
plane.
"""
