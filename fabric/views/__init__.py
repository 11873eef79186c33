"""What the manager says of virtual clusters, as people read it: tables, trees, sentences."""
