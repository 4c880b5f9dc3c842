"""Networks by name are the published ones, with the same weights each time."""

import pytest
import torch
from torch import nn

from fedloom.client.torch import parameters
from fedloom.protocol.errors import UsageError
from fedloom.simulation import models

MNIST = {"input_shape": (1, 28, 28), "num_classes": 10}


def _size(model):
    return sum(param.numel() for param in model.parameters())


@pytest.mark.parametrize(
    ("name", "num_parameters"), [("logistic", 7850), ("2nn", 199_210), ("cnn", 1_663_370)]
)
def test_mcmahans_networks_have_the_papers_number_of_parameters(name, num_parameters):
    """McMahan et al. 2017, section 3."""
    model = models.build(name, **MNIST)
    assert _size(model) == num_parameters
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("name", ["2nn", "cnn", "digits-cnn"])
@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (3, 9, 7)])
def test_images_come_in_any_layout(name, shape):
    model = models.build(name, input_shape=shape, num_classes=5)
    assert model(torch.zeros(2, *shape)).shape == (2, 5)


def test_the_character_model_scores_every_place():
    model = models.build("char-lstm", num_classes=90, input_shape=(20,))
    assert _size(model) == 90 * 8 + 4 * 256 * (8 + 256 + 2 + 256 + 256 + 2) + 257 * 90
    scores = model(torch.zeros(3, 20, dtype=torch.int64))
    assert scores.shape == (3, 90, 20)
    assert models.loss("cross_entropy")(scores, torch.zeros(3, 20, dtype=torch.int64)).ndim == 0


@pytest.mark.parametrize(("classes", "published"), [(10, 11_173_962), (100, 11_220_132)])
def test_resnet18_has_the_known_number_of_parameters(classes, published):
    """Of the usual ResNet-18 for CIFAR; torchvision's is 11,689,512 with stem and classifier."""
    model = models.build("resnet18-gn", input_shape=(3, 32, 32), num_classes=classes)
    assert _size(model) == published
    imagenet = 11_689_512 - 3 * 64 * 7 * 7 - 513 * 1000
    assert _size(model) == imagenet + 3 * 64 * 3 * 3 + 513 * classes
    shapes = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape[1:])))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, classes)
    assert shapes == [
        shape for shape in ((64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)) for _ in "12"
    ]
    assert not any("BatchNorm" in type(module).__name__ for module in model.modules())


def test_the_transformer_has_the_parameters_of_gpt2():
    """124,439,808 of the smallest, whose classifier is its embedding; ours is its own."""
    with torch.device("meta"):
        model = models.transformer(
            num_classes=50257, input_shape=(1024,), width=768, layers=12, heads=12
        )
    assert _size(model) == 124_439_808 + 50257 * (768 + 1)


def test_the_transformer_does_not_see_later_tokens():
    """A score depends on its place and those before it; with one class on all."""
    model = models.build("transformer", input_shape=(9,), num_classes=30, width=16).eval()
    x = torch.randint(1, 30, (2, 9), generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 5:] = (x[:, 5:] + 3) % 29 + 1
    scores, others = model(x), model(changed)
    assert scores.shape == (2, 30, 9)
    torch.testing.assert_close(scores[..., :5], others[..., :5])
    assert not torch.allclose(scores[..., 5:], others[..., 5:])


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_a_text_is_classified_with_a_vocabulary(name):
    """Padding, token 0, at the end has no weight in an LSTM's mean."""
    model = models.build(name, input_shape=(9,), num_classes=3, vocabulary=50).eval()
    x = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    assert model(x).shape == (2, 3)
    assert torch.isfinite(model(torch.zeros_like(x))).all()
    if name == "lstm":
        padded = torch.cat([x, torch.zeros((2, 4), dtype=torch.int64)], dim=1)
        torch.testing.assert_close(model(padded), model(x))
        assert _size(model) == 50 * 8 + 4 * 256 * (8 + 256 + 2 + 256 + 256 + 2) + 257 * 3


def test_the_lstm_without_a_vocabulary_is_the_character_model():
    """Two names, one model."""
    first, second = (models.build(n, num_classes=30, hidden=8) for n in ("lstm", "char-lstm"))
    assert (
        parameters(first)["scores.weight"].tobytes()
        == parameters(second)["scores.weight"].tobytes()
    )


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("transformer", {"input_shape": (1, 8, 8)}, "texts of shape"),
        ("transformer", {"input_shape": (8,), "heads": 3}, "divide width = 128"),
        ("resnet18-gn", {"input_shape": (784,)}, "at least 8×8"),
        ("resnet18-gn", {"input_shape": (3, 32, 32), "groups": 3}, "a divisor of 64"),
    ],
)
def test_networks_refuse_data_that_do_not_fit(name, settings, message):
    """With what was expected."""
    with pytest.raises(UsageError, match=message):
        models.build(name, num_classes=4, **settings)


def test_sizes_and_activations_are_settings():
    model = models.build("mlp", input_shape=(4,), num_classes=2, hidden=[3], activation="tanh")
    assert [type(layer) for layer in model] == [nn.Linear, nn.Tanh, nn.Linear]


def test_weights_follow_from_the_seed_without_changing_torchs_generator():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, again, other = (
        parameters(models.build("2nn", seed=seed, **MNIST))["1.weight"] for seed in (1, 1, 2)
    )
    assert torch.equal(torch.rand(3), expected)
    assert first.tobytes() == again.tobytes() != other.tobytes()


def test_a_users_own_model_and_loss_are_loaded_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "def net(num_classes, width=3):\n    return torch.nn.Linear(width, num_classes)\n"
        "def loss(output, target):\n    return output.sum()\n"
        "def wrong():\n    return 3\n"
    )
    model = models.build(f"{path}:net", width=5, **MNIST)
    assert tuple(model.weight.shape) == (10, 5)
    assert models.loss(f"{path}:loss")(torch.ones(2), None) == 2
    with pytest.raises(UsageError, match="return a module, got int"):
        models.build(f"{path}:wrong")
    with pytest.raises(UsageError, match=r"'model\.depth'. Did you mean 'width'"):
        models.build(f"{path}:net", depth=1, **MNIST)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "resnet"}, "got 'resnet'. Did you mean 'resnet18-gn'"),
        ({"name": "mlp"}, "Missing setting model.hidden of mlp: set it to a list"),
        ({"name": "2nn", "hidden": [1]}, "'model.hidden'. Known: input_shape"),
        (
            {"name": "mlp", "hidden": [1], "activation": "step"},
            "activation, got 'step'. Known: relu",
        ),
        ({"name": "cnn", "input_shape": (5,)}, "Use mlp"),
        ({"name": "cnn", "input_shape": (3, 2, 9)}, "at least 4×4"),
        ({"name": "2nn", "input_shape": None}, "missing a required argument: 'input_shape'"),
        ({"name": "nowhere.py:net"}, "There is no file nowhere.py"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        models.build(**{**MNIST, **settings})


def test_an_unknown_loss_is_refused():
    with pytest.raises(UsageError, match=r"got 'hinge'\. Known: binary_cross_entropy"):
        models.loss("hinge")
