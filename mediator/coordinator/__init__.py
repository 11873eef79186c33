"""The process of one run's coordinator beside the mediator, and its connection to it."""
