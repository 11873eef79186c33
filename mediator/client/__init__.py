"""How a user reaches a mediator: profiles, the calls, and the files of a run."""
