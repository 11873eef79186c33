"""All that talks to Ray: the cluster as `gangs` needs it, Ray's control plane as the manager
needs it, and every private part of Ray that the fabric uses (`private_ray.py`).
"""
