"""A million clients, of which only those you touch exist: train three, average them, judge that."""

import asyncio

from fedpilot import Federation

CONFIG = {
    "federation": {"number_of_clients": 1_000_000, "clients_per_round": 100},
    "model": {"model_type": "mlp"},
    "data": {
        "dataset_type": "digits",
        "data_distribution_kind": "bootstrap",
        "samples_per_client": [20, 60],
    },
    "resources": {"workers": 2},
}


async def main() -> None:
    with Federation(CONFIG) as federation:
        nodes = [federation[f"client_{i}"] for i in (7, 500_000, 999_999)]
        print(nodes)  # virtual: nothing is reserved, nothing runs

        results = await asyncio.gather(*(node.train_async() for node in nodes))
        for result in results:
            print(f"{result.client_id}: {result.samples} samples, loss {result.loss:.3f}")

        average = nodes[0].aggregate(results)
        judged = nodes[1].evaluate(average)
        print(f"the average is right on {judged.accuracy:.0%} of {judged.client_id}'s samples")

        nodes[0].release()
        print(nodes[0].explain())


if __name__ == "__main__":
    asyncio.run(main())
