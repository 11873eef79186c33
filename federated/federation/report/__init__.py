"""What people see of a run: progress on the screen, events as JSON, curves, TensorBoard files."""
