"""Inference, and exports that give the module's outputs."""

import importlib.util
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client import Model, save_file
from fedloom.client.torch import TorchClient, parameters
from fedloom.protocol.errors import UsageError

X = torch.randn(7, 6, generator=torch.Generator().manual_seed(3))
Y = torch.arange(7) % 3


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def model(tmp_path):
    """A model with other values than the module."""
    path = tmp_path / "model.safetensors"
    save_file(parameters(network(seed=1)), path)
    return Model(path=path)


def expected():
    with torch.no_grad():
        return network(seed=1).eval()(X).numpy()


def test_a_module_predicts_with_the_models_values(model):
    """In evaluation mode."""
    np.testing.assert_allclose(model.predict(network(), X), expected(), rtol=1e-6, atol=1e-6)
    client = TorchClient(network(), (X, Y), nn.functional.cross_entropy)
    np.testing.assert_allclose(model.predict(client, X.numpy()), expected(), rtol=1e-6, atol=1e-6)


def test_an_estimator_predicts_with_the_models_values(tmp_path):
    """An estimator of scikit-learn or its client; neither is changed."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    from fedloom.client.sklearn import sklearn_client

    path = tmp_path / "linear.safetensors"
    save_file({"coef": np.array([2.0, -1.0]), "intercept": np.array([0.5])}, path)
    x = np.array([[1.0, 1.0], [0.0, 3.0]])
    estimator = linear_model.SGDRegressor()
    assert Model(path=path).predict(estimator, x) == pytest.approx([1.5, -2.5])
    assert not hasattr(estimator, "coef_")
    client = sklearn_client(estimator, (x, np.zeros(2)))
    assert Model(path=path).predict(client, x) == pytest.approx([1.5, -2.5])


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_torchscript_gives_the_modules_outputs(model, tmp_path):
    """Loaded without fedloom, with another number of examples."""
    out = model.export(tmp_path / "model.pt", "torchscript", network(), X[:3])
    loaded = torch.jit.load(str(out))
    np.testing.assert_allclose(loaded(X).detach(), expected(), rtol=1e-5, atol=1e-5)
    assert [p.name for p in tmp_path.iterdir() if "tmp" in p.name] == []


@pytest.mark.long
def test_torch_export_gives_the_modules_outputs(model, tmp_path):
    """The client's examples give the shape of the inputs."""
    client = TorchClient(network(), (X, Y), nn.functional.cross_entropy)
    out = model.export(tmp_path / "model.pt2", "torch-export", client)
    loaded = torch.export.load(str(out)).module()
    np.testing.assert_allclose(loaded(X).detach(), expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.skipif(not importlib.util.find_spec("onnxscript"), reason="needs fedloom[onnx]")
def test_onnx_gives_the_modules_outputs(model, tmp_path):
    """By onnxruntime and by ONNX's reference."""
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    out = model.export(tmp_path / "model.onnx", "onnx", network(), X[:3])
    for session in (onnxruntime.InferenceSession(str(out)), ReferenceEvaluator(str(out))):
        (answer,) = session.run(None, {"x": X.numpy()})
        np.testing.assert_allclose(answer, expected(), rtol=1e-4, atol=1e-4)


def test_missing_onnx_names_the_extra(model, tmp_path, monkeypatch):
    """The error is a sentence, not a traceback."""
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"fedloom\[onnx\]"):
        model.export(tmp_path / "model.onnx", "onnx", network(), X[:3])


class Branching(nn.Module):
    """A module with a branch that tracing does not see."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if len(x.tolist()) > 1 else x[:, :3]


def test_an_export_with_other_outputs_is_refused(tmp_path):
    """A trace of a module that branches on its inputs; no file is left."""
    path = tmp_path / "model.safetensors"
    save_file(parameters(Branching()), path)
    with pytest.raises(UsageError, match="branch"):
        Model(path=path).export(tmp_path / "model.pt", "torchscript", Branching(), X)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


class Signed(nn.Module):
    """A module that branches on values; `plain` is a condition that cannot be compiled."""

    def __init__(self, plain=None):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.plain = plain

    def forward(self, x):
        if self.plain is not None:
            return self.layer(x) if self.plain(x) else self.layer(-x)
        return self.layer(x) if bool(x.sum() > 0) else self.layer(-x)


def test_a_branch_on_values_is_kept_or_refused(tmp_path):
    """A trace of the example alone is wrong for inputs of the other sign."""
    path = tmp_path / "model.safetensors"
    module = Signed()
    save_file(parameters(module), path)
    x = torch.ones(4, 6)
    out = Model(path=path).export(tmp_path / "model.pt", "torchscript", module, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.jit.load(str(out))
    for sign in (1, -1):
        assert torch.allclose(loaded(sign * x), module(sign * x))
    beyond = Signed(plain=lambda x: bool(sum(x.flatten().tolist()) > 0))
    with pytest.raises(UsageError, match="branch"):
        Model(path=path).export(tmp_path / "other.pt", "torchscript", beyond, x)
    assert not (tmp_path / "other.pt").exists()


@pytest.mark.parametrize(
    ("kind", "target", "example", "words"),
    [
        ("onnx", None, None, "Expected a torch module"),
        ("pickle", network(), X, "format"),
        ("torchscript", network(), None, "example"),
        ("torchscript", network(), X[:1], "two or more"),
        ("torchscript", nn.Linear(6, 2), X, "built alike"),
    ],
)
def test_invalid_exports_are_refused(  # noqa: PLR0917 - fixtures and parameters
    model, tmp_path, kind, target, example, words
):
    """Each with its own error."""
    with pytest.raises(UsageError, match=words):
        model.export(tmp_path / "out", kind, target, example)


def test_other_objects_cannot_predict(model):
    """A target must be a module or an estimator."""
    with pytest.raises(UsageError, match="params"):
        model.predict(object(), X)
