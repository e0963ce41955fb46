"""Forward mode: a tangent on each tensor in turn gives what PyTorch's functions and layers give."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from layer_pairs import LAYERS, data, pair  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

from normgrad.torch import functional  # noqa: E402

#: The functions' calls, of a module that has them and the tensors.
CALLS = {
    "batch norm, training": lambda m, x, w, b, mean, var: m.batch_norm(x, mean, var, w, b, True),
    "batch norm, evaluation": lambda m, x, w, b, mean, var: m.batch_norm(x, mean, var, w, b),
    "instance norm, evaluation": lambda m, x, w, b, mean, var: m.instance_norm(
        x, mean, var, w, b, False
    ),
    "instance norm": lambda m, x, w, b: m.instance_norm(x, weight=w, bias=b),
    "group norm": lambda m, x, w, b: m.group_norm(x, 2, w, b),
    "layer norm": lambda m, x, w, b: m.layer_norm(x, (4,), w, b),
    "RMS norm": lambda m, x, w: m.rms_norm(x, (4,), w),
}


def tensors_of(name, count):
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4, 4), *[(4,)] * (count - 1)]
    return [torch.rand(s, generator=generator, dtype=torch.float64) + 0.5 for s in shapes]


def outcome(compute, *arguments):
    try:
        return compute(*arguments)
    except (RuntimeError, NotImplementedError) as error:
        return str(error)


@pytest.mark.every_case
@pytest.mark.parametrize("name", CALLS)
def test_functions(name):
    call = CALLS[name]
    count = call.__code__.co_argcount - 1
    for place in range(count):

        def dual(module, place=place):
            values = tensors_of(name, count)
            with forward_ad.dual_level():
                values[place] = forward_ad.make_dual(values[place], values[place].cos())
                output = call(module, *values)
                # The running statistics that the call updated are results too.
                return [
                    part for value in (output, *values) for part in forward_ad.unpack_dual(value)
                ]

        def under_torch_func(module, place=place):
            values = tensors_of(name, count)

            def of_one(value):
                return call(module, *values[:place], value, *values[place + 1 :])

            return torch.func.jvp(of_one, (values[place],), (values[place].cos(),)), values

        def of_gradients(module, place=place):
            values = tensors_of(name, count)
            leaves = [value.requires_grad_() for value in values[:3]]
            with forward_ad.dual_level():
                values[place] = forward_ad.make_dual(values[place], values[place].detach().cos())
                output = call(module, *values)
                found = torch.autograd.grad((output**3).sum(), leaves)
                return [part for value in found for part in forward_ad.unpack_dual(value)]

        def of_an_inner_gradient(module, place=place):
            values = tensors_of(name, count)

            def of_one(value):
                whole = [*values[:place], value, *values[place + 1 :]]
                return torch.func.grad(lambda x: call(module, x, *whole[1:]).square().sum())(
                    whole[0]
                )

            return torch.func.jvp(of_one, (values[place],), (values[place].cos(),))

        for compute in (dual, under_torch_func, of_gradients, of_an_inner_gradient):
            expected, found = (
                outcome(compute, module) for module in (torch.nn.functional, functional)
            )
            if compute is of_gradients and "group_norm_backward" in expected:
                continue  # PyTorch has no forward mode of it
            where = f"{name}, tensor {place}, {compute.__name__}"
            if isinstance(expected, str) or isinstance(found, str):
                assert found == expected, where
            else:
                torch.testing.assert_close(
                    found, expected, msg=lambda text, w=where: f"{w}: {text}"
                )


@pytest.mark.every_case
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, training):
    """With the tangent of each parameter and buffer in turn, and of the gradient."""
    theirs, _ = pair(name, training)
    every = {**dict(theirs.named_parameters()), **dict(theirs.named_buffers())}
    for each, tensor in every.items():
        if not tensor.is_floating_point():
            continue
        tangent = torch.linspace(-1, 1, tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
        results = []
        for layer in pair(name, training):
            state = {key: value.detach() for key, value in layer.state_dict().items()}
            with forward_ad.dual_level():
                state[each] = forward_ad.make_dual(state[each], tangent)
                output = torch.func.functional_call(layer, state, data(name))
                values = output, *state.values()
                results.append([part for v in values for part in forward_ad.unpack_dual(v)])
        torch.testing.assert_close(results[1], results[0], msg=lambda text, e=each: f"{e}: {text}")
    if name == "GroupNorm":
        return  # PyTorch has no forward mode of its gradients
    gradients = []
    for layer in pair(name, training):
        x = data(name).requires_grad_()
        with forward_ad.dual_level():
            gradient = forward_ad.make_dual(data(name, 3), data(name, 4))
            found = torch.autograd.grad(layer(x), (x, *layer.parameters()), gradient)
            gradients.append([forward_ad.unpack_dual(value).tangent for value in found])
    torch.testing.assert_close(gradients[1], gradients[0])
