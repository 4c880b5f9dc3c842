"""`fedloom completion`: a shell completion script."""

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell completion script.

    \b
    Examples:
      fedloom completion bash > ~/.local/share/bash-completion/completions/fedloom
      fedloom completion zsh > "${fpath[1]}/_fedloom"
      fedloom completion fish > ~/.config/fish/completions/fedloom.fish
      eval "$(fedloom completion bash)"    # for this shell only
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - rarely used

    root = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    assert found is not None
    script = found(root, {}, "fedloom", "_FEDLOOM_COMPLETE")
    # click's `source()` requires bash on this machine; the script may be for another machine.
    click.echo(script.source_template % script.source_vars())
