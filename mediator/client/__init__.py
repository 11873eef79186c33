"""A user's access to a mediator: profiles, calls, and the files of a run."""
