"""Who is connected: limits of connections, authorization, and the sessions of sites."""
