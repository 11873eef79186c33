"""What starts and ends the machines of declared Ray clusters; one protocol for all."""
