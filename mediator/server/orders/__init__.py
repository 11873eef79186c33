"""The mediator's view of sites, and the orders to them and their answers."""
