"""A site's membership in a federation: joining, certificate renewal, channels."""
