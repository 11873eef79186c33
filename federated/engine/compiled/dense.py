"""The kernel that trains clients on a chain of dense layers, one after the other, by local SGD.

A client's weights stay in the core's cache from its first step to its last, without autograd or a
dozen operations a step (`docs/decisions/0014-compiled-chains`). Weights lie as in PyTorch:
(outputs, inputs), row after row. Batches are padded to a multiple of five samples with zeros whose
slopes are zero, so that loops over five samples have no remainder.
"""

from __future__ import annotations

import math

import numpy as np

from ...core.execution.kernel import fast

NONE, RELU, TANH, SIGMOID = range(4)
"""Activations of a layer's outputs."""
INPUTS, OUTPUTS, WEIGHT, BIAS, ACTIVATION = range(5)
"""Columns of the table of layers; the middle two are offsets in a client's weights."""
PLAIN, MOMENTUM, NESTEROV, ADAM, ADAMW = range(5)
RATE, DECAY, KEPT, BETA1, BETA2, EPS, PROXIMAL, MOST = range(8)
"""Indices of their constants; `KEPT` is the momentum, `PROXIMAL` the mu of FedProx, `MOST` the
largest norm of a gradient, or 0."""


@fast
def train_clients(  # type: ignore[no-untyped-def]
    x, y, positions, sizes, batch, layers, models, rule, constants, room, trained, losses
):
    """Train clients one after the other, each from its model, in batches of its own samples.

    `x` (n, features) and `y` (n,) are all samples, `positions` (epochs, k, most) those of the
    clients in the order of each epoch, `sizes` (k,) how many of them count. `layers` is the table
    of the chain, `models` (k, weights) the initial weights of each client, or (1, weights) of all,
    `constants` those of the rule, and `room` (4, weights) is scratch space. `trained` receives the
    results, tensor after tensor: the first of all clients, in rows, then the second; `losses` (k,)
    the sums of losses in the last epoch.
    """
    weights, gradient, first, second = room[0], room[1], room[2], room[3]
    features, outputs = layers[0, INPUTS], layers[-1, OUTPUTS]
    widest = features
    for layer in range(len(layers)):
        widest = max(widest, layers[layer, OUTPUTS])
    longest = (batch + 4) // 5 * 5
    values = np.empty((len(layers) + 1, longest * widest), x.dtype)
    moved, before = np.empty(longest * widest, x.dtype), np.empty(longest * widest, x.dtype)
    labels = np.empty(batch, np.int64)
    into, rate = gradient, x.dtype.type(1)
    if rule == PLAIN:  # a step is no more than rate x gradient
        into, rate = weights, x.dtype.type(-constants[RATE])
    pull = rate * x.dtype.type(constants[PROXIMAL])
    for client in range(len(sizes)):
        origin = models[min(client, len(models) - 1)]
        _copy(origin, weights)
        if rule != PLAIN:
            _clear(first)
            _clear(second)
        losses[client] = 0.0
        step = 0
        for epoch in range(len(positions)):
            start = 0
            while start < sizes[client]:
                count = min(batch, sizes[client] - start)
                padded = (count + 4) // 5 * 5
                inputs = values[0, : padded * features].reshape(padded, features)
                _clear(values[0, count * features : padded * features])
                for s in range(count):
                    position = positions[epoch, client, start + s]
                    _copy(x[position], inputs[s])
                    labels[s] = y[position]
                _forward(layers, weights, values, padded)
                logits = values[len(layers), : count * outputs].reshape(count, outputs)
                slopes = moved[: count * outputs].reshape(count, outputs)
                loss = _cross_entropy(logits, labels, slopes)
                _clear(moved[count * outputs : padded * outputs])
                if epoch == len(positions) - 1:
                    losses[client] += loss
                if rule != PLAIN:
                    _clear(gradient)
                _backward(layers, weights, origin, into, rate, pull, values, moved, before, padded)
                step += 1
                if constants[MOST] > 0:
                    _clip(gradient, x.dtype.type(constants[MOST]))
                if rule == NESTEROV:
                    _move_ahead(weights, gradient, first, constants)
                elif rule != PLAIN:
                    _move(weights, gradient, first, second, step, rule, constants)
                start += count
        _keep(layers, weights, client, len(trained) // models.shape[1], trained)


@fast
def _copy(source, target):  # type: ignore[no-untyped-def]
    for i in range(len(source)):  # Numba takes seconds to compile an assignment to a slice
        target[i] = source[i]


@fast
def _clear(target):  # type: ignore[no-untyped-def]
    for i in range(len(target)):
        target[i] = 0


@fast
def _scale(target, factor):  # type: ignore[no-untyped-def]
    for i in range(len(target)):
        target[i] *= factor


@fast
def _keep(layers, weights, client, capacity, trained):  # type: ignore[no-untyped-def]
    """Copy a client's weights into its rows."""
    for layer in range(len(layers)):
        at, bias = layers[layer, WEIGHT], layers[layer, BIAS]
        size, outputs = layers[layer, INPUTS] * layers[layer, OUTPUTS], layers[layer, OUTPUTS]
        _copy(weights[at : at + size], trained[at * capacity + client * size :])
        if bias >= 0:
            _copy(weights[bias : bias + outputs], trained[bias * capacity + client * outputs :])


@fast
def _forward(layers, weights, values, count):  # type: ignore[no-untyped-def]
    """Fill `values` layer by layer; its first row holds the inputs."""
    for layer in range(len(layers)):
        inputs, outputs = layers[layer, INPUTS], layers[layer, OUTPUTS]
        at, bias = layers[layer, WEIGHT], layers[layer, BIAS]
        x = values[layer, : count * inputs].reshape(count, inputs)
        out = values[layer + 1, : count * outputs].reshape(count, outputs)
        weight = weights[at : at + outputs * inputs].reshape(outputs, inputs)
        _affine(x, weight, out)
        if bias >= 0:
            for s in range(count):
                for j in range(outputs):
                    out[s, j] += weights[bias + j]
        _activate(out, layers[layer, ACTIVATION])


@fast
def _affine(x, weight, out):  # type: ignore[no-untyped-def]
    """x @ weight^T. A row of weights serves five samples while it is in registers."""
    outputs, inputs = weight.shape
    zero = x.dtype.type(0)
    j = 0
    while j < outputs:
        s = 0
        while s + 5 <= len(x):
            t0, t1, t2, t3, t4 = zero, zero, zero, zero, zero
            for i in range(inputs):
                w = weight[j, i]
                t0 += x[s, i] * w
                t1 += x[s + 1, i] * w
                t2 += x[s + 2, i] * w
                t3 += x[s + 3, i] * w
                t4 += x[s + 4, i] * w
            out[s, j], out[s + 1, j], out[s + 2, j] = t0, t1, t2
            out[s + 3, j], out[s + 4, j] = t3, t4
            s += 5
        j += 1


@fast
def _activate(out, activation):  # type: ignore[no-untyped-def]
    if activation == NONE:
        return
    flat, zero, one = out.reshape(-1), out.dtype.type(0), out.dtype.type(1)
    if activation == RELU:
        for i in range(len(flat)):
            flat[i] = zero if flat[i] <= zero else flat[i]  # NaN stays NaN
    elif activation == TANH:
        for i in range(len(flat)):
            flat[i] = math.tanh(flat[i])
    else:
        for i in range(len(flat)):
            flat[i] = one / (one + math.exp(-flat[i]))


@fast
def _slope(slopes, out, activation):  # type: ignore[no-untyped-def]
    """Propagate slopes (count, outputs) back through an activation with known outputs."""
    if activation == NONE:
        return
    flat, of, zero, one = slopes.reshape(-1), out.reshape(-1), out.dtype.type(0), out.dtype.type(1)
    if activation == RELU:
        for i in range(len(flat)):
            flat[i] = zero if of[i] <= zero else flat[i]
    elif activation == TANH:
        for i in range(len(flat)):
            flat[i] *= one - of[i] * of[i]
    else:
        for i in range(len(flat)):
            flat[i] *= of[i] * (one - of[i])


@fast
def _cross_entropy(logits, labels, slopes):  # type: ignore[no-untyped-def]
    """Return the sum of the samples' losses; fill in the slopes of their mean."""
    count, classes = logits.shape
    one, samples = logits.dtype.type(1), logits.dtype.type(count)
    total = 0.0
    for s in range(count):
        row, slope = logits[s], slopes[s]
        top = row[0]
        for c in range(classes):
            top = max(top, row[c])
        summed = row.dtype.type(0)
        for c in range(classes):
            slope[c] = math.exp(row[c] - top)
            summed += slope[c]
        total += math.log(summed) + top - row[labels[s]]
        share = one / (summed * samples)
        for c in range(classes):
            slope[c] *= share
        slope[labels[s]] -= one / samples
    return total


@fast
def _backward(  # type: ignore[no-untyped-def]
    layers, weights, origin, into, rate, pull, values, moved, before, count
):
    """Add `rate` times the gradient to `into`, which may be the weights themselves.

    FedProx's part of it is `pull` times the distance of the weights from their origin.
    """
    for layer in range(len(layers) - 1, -1, -1):
        inputs, outputs = layers[layer, INPUTS], layers[layer, OUTPUTS]
        at, bias = layers[layer, WEIGHT], layers[layer, BIAS]
        x = values[layer, : count * inputs].reshape(count, inputs)
        slopes = moved[: count * outputs].reshape(count, outputs)
        back = before[: count * inputs].reshape(count, inputs)
        if layer > 0:
            weight = weights[at : at + outputs * inputs].reshape(outputs, inputs)
            _back(slopes, weight, back)
            _slope(back, x, layers[layer - 1, ACTIVATION])
        if pull != 0:
            end = at + outputs * inputs
            _pull(into[at:end], weights[at:end], origin[at:end], pull)
            if bias >= 0:
                end = bias + outputs
                _pull(into[bias:end], weights[bias:end], origin[bias:end], pull)
        _scale(slopes.reshape(-1), rate)
        target = into[at : at + outputs * inputs].reshape(outputs, inputs)
        _add_products(slopes, x, target)
        if bias >= 0:
            for s in range(count):
                for j in range(outputs):
                    into[bias + j] += slopes[s, j]
        moved, before = before, moved


@fast
def _back(slopes, weight, out):  # type: ignore[no-untyped-def]
    """slopes @ weight: adds five rows of weights to a sample's at a time."""
    outputs, inputs = weight.shape
    _clear(out.reshape(-1))
    for s in range(len(slopes)):
        j = 0
        while j + 5 <= outputs:
            f0, f1, f2 = slopes[s, j], slopes[s, j + 1], slopes[s, j + 2]
            f3, f4 = slopes[s, j + 3], slopes[s, j + 4]
            for i in range(inputs):
                out[s, i] += (
                    f0 * weight[j, i]
                    + f1 * weight[j + 1, i]
                    + f2 * weight[j + 2, i]
                    + f3 * weight[j + 3, i]
                    + f4 * weight[j + 4, i]
                )
            j += 5
        while j < outputs:
            f0 = slopes[s, j]
            for i in range(inputs):
                out[s, i] += f0 * weight[j, i]
            j += 1


@fast
def _pull(into, weights, origin, pull):  # type: ignore[no-untyped-def]
    for i in range(len(into)):
        into[i] += pull * (weights[i] - origin[i])


@fast
def _clip(gradient, most):  # type: ignore[no-untyped-def]
    """Scale the gradient down to this norm if its own is larger, as PyTorch does."""
    zero, one, tiny = gradient.dtype.type(0), gradient.dtype.type(1), gradient.dtype.type(1e-6)
    squares = zero
    for i in range(len(gradient)):
        squares += gradient[i] * gradient[i]
    factor = most / (math.sqrt(squares) + tiny)
    if not factor >= one:  # NaN too
        _scale(gradient, factor)


@fast
def _add_products(slopes, x, into):  # type: ignore[no-untyped-def]
    """into += slopes^T @ x: adds five samples to two rows at a time."""
    outputs, inputs = into.shape
    s = 0
    while s + 5 <= len(x):
        j = 0
        while j + 2 <= outputs:
            f0, f1, f2 = slopes[s, j], slopes[s + 1, j], slopes[s + 2, j]
            f3, f4 = slopes[s + 3, j], slopes[s + 4, j]
            g0, g1, g2 = slopes[s, j + 1], slopes[s + 1, j + 1], slopes[s + 2, j + 1]
            g3, g4 = slopes[s + 3, j + 1], slopes[s + 4, j + 1]
            for i in range(inputs):
                x0, x1, x2, x3, x4 = x[s, i], x[s + 1, i], x[s + 2, i], x[s + 3, i], x[s + 4, i]
                into[j, i] += f0 * x0 + f1 * x1 + f2 * x2 + f3 * x3 + f4 * x4
                into[j + 1, i] += g0 * x0 + g1 * x1 + g2 * x2 + g3 * x3 + g4 * x4
            j += 2
        if j < outputs:
            f0, f1, f2 = slopes[s, j], slopes[s + 1, j], slopes[s + 2, j]
            f3, f4 = slopes[s + 3, j], slopes[s + 4, j]
            for i in range(inputs):
                x0, x1, x2, x3, x4 = x[s, i], x[s + 1, i], x[s + 2, i], x[s + 3, i], x[s + 4, i]
                into[j, i] += f0 * x0 + f1 * x1 + f2 * x2 + f3 * x3 + f4 * x4
        s += 5


@fast
def _move(weights, gradient, first, second, step, rule, constants):  # type: ignore[no-untyped-def]
    """One step of `torch.optim.SGD`, `Adam` or `AdamW`."""
    real = weights.dtype.type
    rate, decay = real(constants[RATE]), real(constants[DECAY])
    if rule == MOMENTUM:
        kept = real(constants[KEPT])
        for i in range(len(weights)):
            first[i] = kept * first[i] + (gradient[i] + decay * weights[i])
            weights[i] -= rate * first[i]
        return
    beta1, beta2, eps = constants[BETA1], constants[BETA2], real(constants[EPS])
    size = real(constants[RATE] / (1.0 - beta1**step))
    root = real(math.sqrt(1.0 - beta2**step))
    # Rounded here, so that `rest` is not rewritten below as a difference of large numbers.
    keep2, rest1, rest2 = real(beta2), real(1.0 - beta1), real(1.0 - beta2)
    for i in range(len(weights)):
        slope = gradient[i]
        if rule == ADAM:
            slope += decay * weights[i]
        else:
            weights[i] -= rate * decay * weights[i]
        first[i] += rest1 * (slope - first[i])
        second[i] = keep2 * second[i] + rest2 * slope * slope
        weights[i] -= size * first[i] / (math.sqrt(second[i]) / root + eps)


@fast
def _move_ahead(weights, gradient, velocity, constants):  # type: ignore[no-untyped-def]
    """One step of `torch.optim.SGD` with Nesterov's momentum."""
    real = weights.dtype.type
    rate, decay, kept = real(constants[RATE]), real(constants[DECAY]), real(constants[KEPT])
    for i in range(len(weights)):
        slope = gradient[i] + decay * weights[i]
        velocity[i] = kept * velocity[i] + slope
        weights[i] -= rate * (slope + kept * velocity[i])
