"""The runs of a mediator: their states, coordinator processes and retention."""
