"""Workers of a gang: their placement groups, their actors, and how calls travel to them."""
