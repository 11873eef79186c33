"""The commands of mediators and sites: `fedpilot mediator, site, certs, events, profile`."""
