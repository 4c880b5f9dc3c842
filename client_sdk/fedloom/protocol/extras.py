"""Optional packages: an error for a missing one names the command that installs it."""

import os
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from fedloom.protocol.errors import UsageError

EXTRAS: Mapping[str, str] = {
    "accelerate": "hf",
    "dp_accounting": "privacy",
    "fastapi": "server",
    "flwr": "flower",
    "h5py": "hdf5",
    "joserfc": "oidc",
    "matplotlib": "sim",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "optuna": "sim",
    "peft": "hf",
    "pyarrow": "parquet",
    "ray": "ray",
    "sklearn": "sklearn",
    "sqlalchemy": "server",
    "torch": "torch",
    "transformers": "hf",
    "xgboost": "xgboost",
}
"""The extra of this distribution that brings a package."""
DISTRIBUTIONS: Mapping[str, str] = {
    "Bio": "biopython",
    "PIL": "pillow",
    "attr": "attrs",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "usb": "pyusb",
    "yaml": "pyyaml",
}
"""Well-known packages whose distribution has another name."""


def remedy(package: str) -> str:
    """The command that installs a package.

    >>> remedy("sklearn")
    "pip install 'fedloom[sklearn]'"
    >>> remedy("yaml")
    'pip install pyyaml'
    """
    if extra := EXTRAS.get(package):
        return f"pip install 'fedloom[{extra}]'"
    return f"pip install {DISTRIBUTIONS.get(package, package)}"


def flower(purpose: str) -> ModuleType:
    """Import Flower with its telemetry switched off.

    Args:
        purpose: completes the message "Expected Flower ...".

    Raises:
        UsageError: it is not installed.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        return import_module("flwr")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Expected Flower {purpose}, got no module {error.name}: pip install 'fedloom[flower]'."
        ) from None
