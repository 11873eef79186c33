"""Names, amounts and untrusted text: what is allowed, and how it is shown."""
