"""A round's orders at this site: what they send to the workers, and how they answer."""
