"""All that talks to Ray: the cluster as `gangs` needs it (`cluster.py`, `workers/`), Ray's control
plane as the manager needs it (`control_plane/`), the start of a private Ray (`start.py`), and every
private part of Ray that the fabric uses (`private_ray.py`).
"""
