"""Sites as the mediator sees them, and orders on their way to them and back."""
