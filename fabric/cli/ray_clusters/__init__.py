"""`fedpilot raycluster`: Ray clusters that are declared, and kept as declared."""
