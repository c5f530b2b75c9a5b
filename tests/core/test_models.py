from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from evenfed.core.errors import ConfigError
from evenfed.core.models import (
    build,
    char_gru,
    cnn,
    default_name,
    linear,
    mlp,
    parameter_count,
    resnet18,
)
from evenfed.core.normalization import without_batch_norm

CLIENTS, BATCH, CLASSES, TOKENS = 3, 4, 5, 11

Make = Callable[[], nn.Module]

MODELS: dict[str, tuple[Make, tuple[int, ...], int]] = {
    "linear": (lambda: linear(6, CLASSES), (6,), 0),
    "mlp": (lambda: mlp(6, CLASSES, hidden=(8, 7)), (2, 3), 0),
    "cnn": (lambda: cnn((1, 8, 8), CLASSES, channels=(4, 6), hidden=9), (1, 8, 8), 0),
    "char_gru": (lambda: char_gru(TOKENS, CLASSES, 3, 7, layers=2), (6,), TOKENS),
    "resnet18": (lambda: resnet18((3, 8, 8), CLASSES, width=4), (3, 8, 8), 0),
}


def inputs(shape: tuple[int, ...], vocabulary: int, *leading: int) -> Tensor:
    size = (*leading, *shape)
    return torch.randint(vocabulary, size) if vocabulary else torch.randn(size)


def stacked_problem(
    name: str,
) -> tuple[Callable[..., dict[str, Tensor]], dict[str, Tensor], Tensor, Tensor]:
    """Return the gradient function of one client, and three clients' parameters, x and y.

    In float64, so that only an error, not rounding, can make two ways of computing differ.
    """
    torch.manual_seed(0)
    make, shape, vocabulary = MODELS[name]
    modules = [make().double() for _ in range(CLIENTS)]
    parameters = {
        key: torch.stack([module.get_parameter(key).detach() for module in modules])
        for key, _ in modules[0].named_parameters()
    }

    def loss(one: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(modules[0], one, (x,)), y)

    x = inputs(shape, vocabulary, CLIENTS, BATCH)
    x = x if vocabulary else x.double()
    return grad(loss), parameters, x, torch.randint(CLASSES, (CLIENTS, BATCH))


@pytest.mark.parametrize("name", MODELS)
def test_model_maps_examples_to_outputs(name: str) -> None:
    make, shape, vocabulary = MODELS[name]
    assert make()(inputs(shape, vocabulary, BATCH)).shape == (BATCH, CLASSES)


@pytest.mark.parametrize("make", [cnn, resnet18])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 30, 21)])
def test_image_models_accept_the_usual_image_sizes(
    make: Callable[..., nn.Module], shape: tuple[int, ...]
) -> None:
    options = {"channels": (2, 3), "hidden": ()} if make is cnn else {"width": 4}
    assert make(shape, 10, **options)(torch.randn(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("channels", [1, 3])
def test_cnn_has_channels_last_in_memory_and_the_values_of_its_layers(channels: int) -> None:
    model = cnn((channels, 8, 8), CLASSES, channels=(4, 6), hidden=9)
    assert isinstance(model, nn.Sequential)
    x = torch.randn(BATCH, channels, 8, 8)
    plain = nn.Sequential(*model)
    torch.testing.assert_close(model(x), plain(x), rtol=1e-5, atol=1e-6)
    assert list(model.state_dict()) == list(plain.state_dict())
    strides: list[tuple[int, ...]] = []
    model[0].register_forward_hook(lambda *given: strides.append(given[2].stride()))
    model(x)
    assert strides == [(4 * 8 * 8, 1, 4 * 8, 4)]


@pytest.mark.parametrize("size", [16, 18, 19])
def test_cnn_with_a_pool_sees_the_means_of_squares(size: int) -> None:
    pooled = cnn((3, size, size), CLASSES, channels=(4, 6), hidden=9, pool=2)
    small = cnn((3, size // 2, size // 2), CLASSES, channels=(4, 6), hidden=9)
    small.load_state_dict(dict(zip(small.state_dict(), pooled.state_dict().values(), strict=True)))
    x = torch.randn(BATCH, 3, size, size)
    side = size // 2
    means = x[..., : 2 * side, : 2 * side].reshape(BATCH, 3, side, 2, side, 2).mean((3, 5))
    torch.testing.assert_close(pooled(x), small(means), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_vmap_of_gradients_over_clients_equals_a_loop(name: str) -> None:
    gradient, parameters, x, y = stacked_problem(name)
    together = vmap(gradient)(parameters, x, y)
    for k in range(CLIENTS):
        alone = gradient({key: value[k] for key, value in parameters.items()}, x[k], y[k])
        for key, value in alone.items():
            torch.testing.assert_close(together[key][k], value, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_traced_gradients_over_clients_equal_the_untraced(name: str) -> None:
    gradient, parameters, x, y = stacked_problem(name)
    graph = make_fx(vmap(gradient))(parameters, x, y)
    fresh = x.flip(0)
    traced = graph(parameters, fresh, y)
    for key, value in vmap(gradient)(parameters, fresh, y).items():
        torch.testing.assert_close(traced[key], value, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    gradient, parameters, x, y = stacked_problem(name)
    for key, value in vmap(gradient)(parameters, x, y).items():
        assert value.abs().sum() > 0, key


@pytest.mark.parametrize("name", MODELS)
def test_equal_seeds_give_equal_weights(name: str) -> None:
    make = MODELS[name][0]
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append(make().state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", MODELS)
def test_built_in_models_have_no_buffers(name: str) -> None:
    assert not list(MODELS[name][0]().buffers())


@pytest.mark.parametrize("layers", [1, 2])
def test_char_gru_equals_torch_gru_with_the_same_draws(layers: int) -> None:
    torch.manual_seed(3)
    ours = char_gru(TOKENS, CLASSES, 3, 16, layers=layers).double()
    torch.manual_seed(3)
    embedding, gru = nn.Embedding(TOKENS, 3), nn.GRU(3, 16, layers, batch_first=True)
    head = nn.Linear(16, CLASSES)
    theirs = nn.ModuleList([embedding, gru, head]).double()

    x, y = torch.randint(TOKENS, (BATCH, 20)), torch.randint(CLASSES, (BATCH,))
    expected = head(gru(embedding(x))[0][:, -1])
    torch.testing.assert_close(ours(x), expected)

    functional.cross_entropy(ours(x), y).backward()
    functional.cross_entropy(expected, y).backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet18_has_the_size_of_its_architecture(norm: str) -> None:
    # Counted from He et al. (2016), Table 1, with a 3x3 first convolution: the weights of the
    # convolutions, two numbers per normalised channel, and the last layer.
    expected = 9 * 3 * 64 + 2 * 64 + 4 * (9 * 64 * 64 + 2 * 64) + (512 + 1) * 10
    for before, after in [(64, 128), (128, 256), (256, 512)]:
        expected += (9 + 1) * before * after + 3 * 9 * after * after + 5 * 2 * after
    assert parameter_count(resnet18((3, 32, 32), 10, norm=norm)) == expected


def test_resnet_of_one_block_a_stage_has_the_size_of_its_architecture() -> None:
    # first convolution and norm; per stage two 3x3 convolutions with norms (weight and bias), and
    # where channels double a 1x1 shortcut with its norm; the head
    first = 3 * 4 * 9 + 8
    one = 2 * (4 * 4 * 9 + 8)
    two = 4 * 8 * 9 + 8 * 8 * 9 + 2 * 16 + (4 * 8 + 16)
    expected = first + one + two + 8 * 10 + 10
    assert parameter_count(resnet18((3, 8, 8), 10, width=4, blocks=(1, 1))) == expected


def test_resnet18_normalises_as_asked() -> None:
    kinds = {type(m) for m in resnet18((3, 8, 8), 2, norm="batch", width=4).modules()}
    assert nn.BatchNorm2d in kinds
    assert nn.GroupNorm not in kinds
    with pytest.raises(ConfigError, match="Did you mean 'batch'"):
        resnet18((3, 8, 8), 2, norm="batchh")


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "options"),
    [
        ("logistic", (6,), 0, {}),
        ("linear", (1, 4, 4), 0, {}),
        ("mlp", (1, 4, 4), 0, {"hidden": [8, 8]}),
        ("mlp", (6,), 0, {"hidden": 8}),
        ("cnn", (1, 8, 8), 0, {"channels": [2], "hidden": [8, 4]}),
        ("char_gru", (6,), TOKENS, {"embedding": 2, "hidden": 4, "layers": 2}),
        ("resnet18", (3, 8, 8), 0, {"width": 4, "norm": "group"}),
    ],
)
def test_build_makes_each_model_by_name(
    name: str, shape: tuple[int, ...], vocabulary: int, options: dict[str, object]
) -> None:
    model = build(name, shape, CLASSES, vocabulary, **options)
    assert model(inputs(shape, vocabulary, BATCH)).shape == (BATCH, CLASSES)


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "options", "message"),
    [
        ("mpl", (6,), 0, {}, "no built-in model 'mpl'. Did you mean 'mlp'"),
        ("transformer", (6,), 0, {}, "Known: char_gru, cnn, linear, logistic, mlp, resnet18"),
        ("mlp", (6,), 0, {"hiden": 8}, "no option 'hiden'. Did you mean 'hidden'"),
        ("mlp", (6,), 0, {"inputs": 8}, "no option 'inputs'"),
        ("logistic", (6,), 0, {"hidden": 8}, "no option 'hidden'. It has none"),
        ("mlp", (6,), 0, {"hidden": 0}, "'hidden' must be a whole number of at least 1, not 0"),
        ("mlp", (6,), 0, {"hidden": "8"}, "'hidden' must be .* not '8'"),
        ("char_gru", (6,), 9, {"hidden": [8, 8]}, "'hidden' must be"),
        ("char_gru", (6,), 0, {}, "reads tokens"),
        ("mlp", (6,), TOKENS, {}, "cannot read tokens; use 'char_gru'"),
        ("cnn", (6,), 0, {}, r"reads images, shape \(C, H, W\); .* \(6,\)"),
        ("resnet18", (6,), 0, {}, "reads images"),
        ("cnn", (1, 3, 8), 0, {}, "3 x 8 is too small, each side must be at least 4"),
        ("cnn", (1, 7, 8), 0, {"pool": 2}, "by 2 and halves .* 7 x 8 is too small, .* at least 8"),
        ("cnn", (1, 8, 8), 0, {"pool": 0}, "'pool' must be a whole number of at least 1, not 0"),
    ],
)
def test_build_refuses_what_it_cannot_make(
    name: str, shape: tuple[int, ...], vocabulary: int, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, shape, CLASSES, vocabulary, **options)


@pytest.mark.parametrize(
    ("shape", "vocabulary", "name"),
    [
        ((30,), 0, "mlp"),
        ((1, 8, 8), 0, "mlp"),
        ((3, 32, 27), 0, "mlp"),
        ((1, 28, 28), 0, "cnn"),
        ((3, 32, 32), 0, "cnn"),
        ((80,), 80, "char_gru"),
    ],
)
def test_default_name_follows_the_kind_of_examples(
    shape: tuple[int, ...], vocabulary: int, name: str
) -> None:
    assert default_name(shape, vocabulary) == name


def test_without_batch_norm_replaces_each_in_a_copy() -> None:
    original = resnet18((3, 8, 8), CLASSES, norm="batch", width=4)
    fixed = without_batch_norm(original)
    grouped = resnet18((3, 8, 8), CLASSES, width=4)
    assert [type(m) for m in fixed.modules()] == [type(m) for m in grouped.modules()]
    assert any(isinstance(m, nn.BatchNorm2d) for m in original.modules())
    grouped.load_state_dict(fixed.state_dict())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(fixed(x), grouped(x))


@pytest.mark.parametrize(
    ("channels", "groups"),
    # The largest divisor up to 32 that leaves at least 4 channels in a group.
    [(1, 1), (4, 1), (7, 1), (8, 2), (12, 3), (64, 16), (96, 24), (128, 32), (512, 32)],
)
def test_group_norm_has_as_many_groups_as_divide_the_channels(channels: int, groups: int) -> None:
    fixed = without_batch_norm(nn.Sequential(nn.BatchNorm2d(channels)))
    assert next(m.num_groups for m in fixed.modules() if isinstance(m, nn.GroupNorm)) == groups


def test_without_batch_norm_keeps_scale_shift_epsilon_and_mode() -> None:
    layer = nn.BatchNorm2d(8, eps=1e-3).eval()
    nn.init.normal_(layer.weight)
    layer.bias.requires_grad_(False)
    fixed = without_batch_norm(layer)
    assert isinstance(fixed, nn.GroupNorm)
    assert torch.equal(fixed.weight, layer.weight)
    assert fixed.weight is not layer.weight
    assert not fixed.bias.requires_grad
    assert fixed.eps == 1e-3
    assert not fixed.training
    assert not list(without_batch_norm(nn.BatchNorm2d(8, affine=False)).parameters())


def test_without_batch_norm_keeps_shared_layers_shared() -> None:
    shared = nn.BatchNorm1d(6)
    fixed = without_batch_norm(nn.Sequential(shared, nn.Linear(6, 6), shared))
    assert isinstance(fixed.get_submodule("0"), nn.GroupNorm)
    assert fixed.get_submodule("0") is fixed.get_submodule("2")
    assert fixed(torch.randn(4, 6)).shape == (4, 6)


def test_without_batch_norm_of_a_table_row_normalises_the_whole_row() -> None:
    row = torch.randn(4, 64)
    torch.testing.assert_close(
        without_batch_norm(nn.BatchNorm1d(64))(row), functional.layer_norm(row, (64,))
    )


def test_without_batch_norm_trains_many_clients_at_once() -> None:
    module = without_batch_norm(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)))
    parameters = {k: torch.stack([p.detach()] * CLIENTS) for k, p in module.named_parameters()}

    def loss(one: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, one, (x,)).square().mean()

    result = vmap(grad(loss))(parameters, torch.randn(CLIENTS, 2, 1, 6, 6))
    assert result["0.weight"].shape == (CLIENTS, 8, 1, 3, 3)


def test_parameter_count_counts_weights_and_biases() -> None:
    # Fully connected 784-200-200-10.
    expected = 785 * 200 + 201 * 200 + 201 * 10
    assert parameter_count(mlp(784, 10, hidden=(200, 200))) == expected
