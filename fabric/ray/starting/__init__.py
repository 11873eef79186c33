"""Starts Rays: a private one in this process, and the machines of declared Ray clusters."""
