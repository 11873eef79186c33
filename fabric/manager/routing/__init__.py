"""Routes tasks and actors to placement groups: answers where each runs, and keeps account of it
until it ends. Orders placement groups through a protocol (`Bundles`), and never asks Ray itself.
"""
