"""What all trainers share: the client, its samples, optimizer and model."""
