"""Batched training: the clients of a chunk take their local steps together, one row each.

The last batch of an epoch is padded with the client's own first sample at weight zero. Clients with
most samples come first; each goes through its epochs at its own pace and drops out after its last
step. So a client's arithmetic has the same shape whichever clients share the chunk.

A GPU's libraries pick a kernel, and with it the bits, by the shape of the whole batch. There each
step computes all rows, those of clients that are done or missing with weight zero, and moves the
rows of the others alone. Some kernels multiply the values of one row by zero for another one, which
is no zero if a value is not finite. So a client whose result is not finite trains again by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ...config.schema import Training
from ...core.randomness import Purpose, torch_seed
from ...core.state import State
from ...core.user_code.user_errors import client_failed
from ..stacking import Stacked
from ..training.optimizers import LocalOptimizer
from ..training.samples import Chunk, Samples
from ..training.training import Start, Trained


class BatchedTrainer:
    """Trains up to `capacity` clients at once on a stacked module."""

    def __init__(
        self,
        stacked: Stacked,
        names: Mapping[str, str],
        samples: Samples,
        training: Training,
        *,
        seed: int,
        device: torch.device,
        all_rows: bool,
    ) -> None:
        """Compute all rows in each step if `all_rows`, which a GPU needs."""
        self._stacked = stacked
        self._names = names
        """By trained tensor of the state: its row (tied ones share one)."""
        self._samples = samples
        self._training = training
        self._seed = seed
        self._device = device
        some = next(iter(stacked.rows.values()))
        real, self._rows = some.dtype, len(some)
        self._all_rows = all_rows
        self._optimizer = LocalOptimizer(training, stacked=True)
        self._generators: list[torch.Generator] = []
        self._shares = _shares(training.batch_size).to(device, real)

    def train(
        self,
        chunk: Chunk,
        round_number: int,
        start: Start,
        memories: Mapping[int, State],
    ) -> Iterator[Trained]:
        started = time.perf_counter()
        try:
            losses = self._train(chunk, round_number, start)
            tensors = self._trained(len(chunk))
            if self._all_rows and len(chunk) > 1:
                tensors = self._alone_if_not_finite(chunk, round_number, start, tensors, losses)
        except Exception as error:
            names = [self._samples.partition.client_id(int(i)) for i in chunk.clients[:3]]
            others = f" and {len(chunk) - 3} more" if len(chunk) > 3 else ""
            doing = f"training together in round {round_number}"
            raise client_failed(f"{', '.join(names)}{others}", doing, error) from error
        yield Trained(slice(0, len(chunk)), tensors, losses, time.perf_counter() - started)

    def _trained(self, count: int) -> dict[str, Tensor]:
        """What the first clients' rows hold now, (count, *shape) by tensor of the state."""
        rows = self._stacked.rows
        return {name: rows[row][:count] for name, row in self._names.items()}

    def _alone_if_not_finite(
        self,
        chunk: Chunk,
        round_number: int,
        start: Start,
        tensors: dict[str, Tensor],
        losses: npt.NDArray[np.float64],
    ) -> dict[str, Tensor]:
        """Train clients whose result is not finite again, each by itself; `losses` changes too."""
        finite = torch.stack(
            [rows.isfinite().reshape(len(chunk), -1).all(1) for rows in tensors.values()]
        )
        kept = finite.all(0).cpu().numpy() & np.isfinite(losses)
        if kept.all():
            return tensors
        found = {name: rows.clone() for name, rows in tensors.items()}
        for place in np.flatnonzero(~kept).tolist():
            alone = self._train(chunk.only(place), round_number, Start(start.of(place), start.rate))
            losses[place] = alone[0]
            for name, rows in self._trained(1).items():
                found[name][place] = rows[0]
        return found

    def _train(self, chunk: Chunk, round_number: int, start: Start) -> npt.NDArray[np.float64]:
        stacked, batch, count = self._stacked, self._training.batch_size, len(chunk)
        for name, tensor in stacked.fixed.items():
            if name in start.model:
                tensor.copy_(start.model[name])
        for name, rows in stacked.rows.items():
            rows[:count].copy_(start.rows(name))
            if self._all_rows:
                rows[count:] = rows[:1]
        if stacked.random:
            self._seed_rows(chunk, round_number)
        stacked.step_at(start.rate)
        begun = {name: rows[:count] for name, rows in stacked.rows.items()}
        self._optimizer.begin(begun, start.rate)
        epochs = self._training.number_of_epochs
        steps = -(-chunk.sizes // batch)
        longest = int(steps.max(initial=0))
        orders = self._orders(chunk, round_number, epochs, longest)
        turns = np.arange(epochs * longest)[:, None]
        active = np.count_nonzero(turns < steps * epochs, axis=1).tolist()
        epoch_of, step_of = np.divmod(turns, np.maximum(steps, 1))
        in_step = np.clip(chunk.sizes - step_of * batch, 0, batch)
        sums = np.zeros(count)
        means: list[tuple[int, Tensor]] = []
        for turn, clients in enumerate(active):
            epoch = epoch_of[turn, :clients]
            positions = orders[epoch, np.arange(clients), step_of[turn, :clients]]
            held = in_step[turn, :clients]
            if self._all_rows:
                idle = self._rows - clients
                positions = np.pad(positions, ((0, idle), (0, 0)), mode="edge")
                held = np.pad(held, (0, idle))
            x, y = self._samples.gather(positions.reshape(-1))
            share = self._shares[torch.from_numpy(held).to(self._device)]
            losses = functional.cross_entropy(stacked.forward(len(held), x), y, reduction="none")
            torch.autograd.backward(losses, share.reshape(-1))
            self._step(clients)
            if (epoch == epochs - 1).any():
                mean = (losses.detach().view(len(held), batch) * share).sum(1)
                means.append((turn, mean[:clients]))
        for turn, mean in means:
            here = slice(0, len(mean))
            loss = mean.double().cpu().numpy() * in_step[turn, here]
            sums[here] += np.where(epoch_of[turn, here] == epochs - 1, loss, 0.0)
        return sums

    def _step(self, clients: int) -> None:
        """Move the first rows by their gradients."""
        leaves = self._stacked.leaves
        gradients = {name: leaf.grad for name, leaf in leaves.items()}
        if self._all_rows:
            leaves = {name: leaf.detach()[:clients] for name, leaf in leaves.items()}
            gradients = {n: None if g is None else g[:clients] for n, g in gradients.items()}
        self._optimizer.step(leaves, gradients)

    def _orders(
        self, chunk: Chunk, round_number: int, epochs: int, longest: int
    ) -> npt.NDArray[np.int64]:
        """(epochs, clients, steps, batch): the position of every sample of every step."""
        batch = self._training.batch_size
        orders = np.empty((epochs, len(chunk), longest, batch), dtype=np.int64)
        for epoch, order in enumerate(orders):
            found = self._samples.positions(chunk, round_number, epoch, longest * batch)
            order[...] = found.reshape(order.shape)
        return orders

    def _seed_rows(self, chunk: Chunk, round_number: int) -> None:
        while len(self._generators) < (self._rows if self._all_rows else len(chunk)):
            self._generators.append(torch.Generator(self._device))
        for generator, key in zip(self._generators, chunk.keys.tolist(), strict=False):
            seed = torch_seed(self._seed, Purpose.TRAIN, round=round_number, key=key)
            generator.manual_seed(seed)
        self._stacked.seed(self._generators)


def _shares(batch: int) -> Tensor:
    """(batch + 1, batch): each sample's weight in a batch that holds so many; padding has 0."""
    held = np.arange(batch + 1)[:, None]
    return torch.from_numpy((np.arange(batch) < held) / np.maximum(held, 1))
