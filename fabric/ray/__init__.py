"""All code that talks to Ray: `cluster.py` and `workers/` for `gangs`, `control_plane/` for the
manager, `start.py` for a private Ray, and `private_ray.py` with all private parts of Ray in use.
"""
