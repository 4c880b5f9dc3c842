"""An agent whose training the test controls: `slow_client.py CONFIG FOLDER`.

Each epoch adds one to the model and to the file `epochs`, then waits for a file `go`.
"""

import sys
import time
from pathlib import Path

import numpy as np

from fedloom.client import Client, run

EPOCHS = 4


class Slow(Client):
    def __init__(self, folder):
        self.folder = folder

    def train(self, params, task):
        first = 0
        if (path := task.resume()) is not None:
            with np.load(path) as kept:
                params, first = {"w": kept["w"]}, int(kept["epoch"])
        for epoch in range(first, EPOCHS):
            params["w"] = params["w"] + np.float32(1)
            kept = {"w": params["w"], "epoch": epoch + 1}
            task.checkpoint(lambda file, kept=kept: np.savez(file, **kept), always=True)
            with (self.folder / "epochs").open("a") as file:
                file.write(f"{epoch}\n")
            while not (self.folder / "go").exists() and epoch == 1:
                if task.should_stop():
                    return params, 1, {}
                time.sleep(0.01)
        return params, 1, {}


if __name__ == "__main__":
    run(Slow(Path(sys.argv[2])), sys.argv[1])
