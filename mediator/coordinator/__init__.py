"""The process of a run's coordinator beside the mediator, and its connection to the mediator."""
