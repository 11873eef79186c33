"""Declared Ray clusters: kept, started, healed, scaled, ended.

What a Ray cluster should be is decided in `core/ray_clusters`, and `spec` reads how it is written.
This room may import both, and `ray`; it knows neither virtual clusters nor the actor in `manager`.
"""
