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
        ({"name": "resnet"}, "got 'resnet'. Known: 2nn"),
        ({"name": "mlp"}, "missing a required argument: 'hidden'"),
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
