"""What the init container of a manifest does, in folders of a test."""

import subprocess

import yaml


def prepared(manifest, folder, secrets):
    """Run the init container's script of the only StatefulSet; the state folder that it makes.

    Args:
        manifest: file.
        folder: in place of the volume /state.
        secrets: folder in place of the mounted Secret.
    """
    documents = yaml.safe_load_all(manifest.read_text())
    (pods,) = (each for each in documents if each and each["kind"] == "StatefulSet")
    (container,) = pods["spec"]["template"]["spec"]["initContainers"]
    *shell, script = container["command"]
    script = script.replace("/run/secrets/fedloom", str(secrets)).replace("/state", str(folder))
    subprocess.run([*shell, script], check=True)
    return folder / "server"
