"""How a site belongs to a federation: joining, the certificate and its renewal, the channel."""
