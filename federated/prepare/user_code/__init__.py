"""A run's code from outside fedpilot: finds its sources, packs and names them, and imports them.

What the archive may hold is decided in `core/user_code`.
"""
