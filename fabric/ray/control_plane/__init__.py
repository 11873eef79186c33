"""Ray's control plane as the manager needs it: what it is asked, how its answers are read, whether
it answers at all. Imports Ray's private parts through `private_ray` only.
"""
