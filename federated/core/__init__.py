"""Decide how a federation learns; pure: no Ray, wire, clock or screen."""
