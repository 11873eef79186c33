"""What processes need of this computer: size, user, folders, files, processes, signals, exits."""
