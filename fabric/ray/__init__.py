"""All code that talks to Ray; `private_ray.py` has all of Ray's private parts that are in use."""
