"""The calls that the mediator answers: users, coordinators, joins, renewals, blobs."""
