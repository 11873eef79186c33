"""A client of Flower's, in a module of its own.

Actors get what lies in `__main__` by value: anew for every client, its data included.
"""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from models import build_model, train
from workload import WORKLOADS

client = ClientApp()
resident_model = functools.lru_cache(build_model)


@client.train()
def train_client(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    workload = WORKLOADS[message.content["config"]["workload"]]
    model = resident_model(workload.model)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = workload.client(context.node_config["partition-id"])
    train(model, x, y, workload.rate)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content=content, reply_to=message)
