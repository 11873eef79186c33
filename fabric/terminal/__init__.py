"""How all commands print, are interrupted and end; it imports no Ray and no mediator."""
