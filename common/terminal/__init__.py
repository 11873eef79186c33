"""How all commands print, are interrupted and end."""
