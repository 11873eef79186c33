"""A client on a graph: a placeholder, materialized, trained, its state shared with neighbors."""

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
    "resources": {"workers": 2},
}


def main() -> None:
    with Federation(CONFIG) as federation:
        node = federation["client_7"]
        print(f"1. {node}: a placeholder; nothing is reserved, nothing runs")

        print(f"2. first use: {node.id} exchanges with {', '.join(node.neighbors)}")
        node.materialize()

        where = federation.topology.locate(node.id)
        print(f"3. {node}: at site {where.site}, hosted by {where.worker} on vnode {where.vnode}")

        around = [node, *(federation[name] for name in node.neighbors)]
        trained = {each.id: each.train() for each in around}
        for name, result in trained.items():
            print(f"4. {name} trained: {result.samples} samples, loss {result.loss:.3f}")

        for each in around:
            key = each.publish(trained[each.id].state)
            print(f"5. {each.id} published {key[:12]} to its neighbors")
        mixed = node.aggregate()  # its own state and its neighbors', by the graph's weights
        judged = node.evaluate(mixed)
        print(f"the mixture is right on {judged.accuracy:.0%} of {node.id}'s samples")


if __name__ == "__main__":
    main()
