"""Decides how many machines declared Ray clusters have, and edits their declarations alone.

It knows nothing of the lifecycle manager, which acts on what is declared.
"""
