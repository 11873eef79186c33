"""Connections to the mediator: their limits, authorization, and the sessions of sites."""
