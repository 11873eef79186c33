"""Permissions: roles, a site's policy and disclosure, who reads results, commands at a site."""
