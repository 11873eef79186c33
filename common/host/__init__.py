"""What processes need of this computer: its size, its user, whole files, signals, exit codes."""
