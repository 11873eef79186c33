"""The runs of a mediator: their states, their coordinators' processes, how long they are kept."""
