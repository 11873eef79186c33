"""A client on a graph: a VirtualNode, and the five steps of the FederatedNode that hosts it."""

from fedpilot import Federation

CONFIG = {
    "federation": {
        "number_of_clients": 50,
        "rounds": 10,
        "topology": "ring",
        "aggregation_strategy": "dpsgd",
    },
    "model": {"model_type": "mlp"},
    "data": {
        "dataset_type": "digits",
        "data_distribution_kind": "dirichlet",
        "dirichlet_beta": 0.1,
    },
    "training": {"number_of_epochs": 2},
    "resources": {"workers": 2},
}


def main() -> None:
    with Federation(CONFIG) as federation:
        node, topology = federation["client_7"], federation.topology
        print(f"the placeholder: {node}, an id and a config; nothing is reserved, nothing runs")

        node.materialize()  # train(), evaluate() and aggregate() would do this
        where = topology.locate(node.id)
        print(f"materialized: site {where.site}, vnode {where.vnode}, hosted by {where.worker}")

        model, epochs = CONFIG["model"]["model_type"], CONFIG["training"]["number_of_epochs"]
        trained = node.train()  # steps 1 to 3, in the FederatedNode, a Ray actor
        print(f"1. the model, from the registry: {model}, {federation.parameters:,} parameters")
        print(f"2. its partition of the dataset: {trained.samples} samples")
        print(f"3. local gradient descent, {epochs} epochs: loss {trained.loss:.3f}")

        key = topology.publish(node.id, trained.state)  # steps 4 and 5; node.publish() is the same
        print(f"4. its state_dict, in the GlobalObjectStore: {', '.join(trained.state)}")
        around = " and ".join(node.neighbors)
        print(f"5. the key {key}, published to {around} by the TopologyManager")

        for neighbor in (federation[name] for name in node.neighbors):
            neighbor.publish(neighbor.train().state)
        mixed = node.aggregate()  # its own state and its neighbors', by the graph's weights
        judged = node.evaluate(mixed)
        print(f"the mixture of all three is right on {judged.accuracy:.0%} of {node.id}'s samples")


if __name__ == "__main__":
    main()
