"""What a round asks of its sites: to train, to exchange on a graph, to evaluate."""
