"""What the manager keeps on disk: its state and the record of its heads; decides nothing."""
