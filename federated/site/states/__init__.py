"""What clients keep between rounds: their states, in one file by places and one of plain rows."""
