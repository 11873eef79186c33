"""A Ray cluster as a whole: its heads, one after another, and what it would need more machines for.

Decides from records alone; it imports the rest of the core, and no other room does the reverse.
"""
