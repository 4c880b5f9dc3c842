"""The command line `fedloom`.

    >>> from click.testing import CliRunner
    >>> from fedloom.cli.main import main
    >>> CliRunner().invoke(main, ["--help"]).output.splitlines()[0]
    'Usage: main [OPTIONS] COMMAND [ARGS]...'

`main` imports a command on first use, so that help is fast on a device.

device      commands of a device: enrolment, the agent, diagnosis, policy, log
operator    commands of an operator: runs, rounds, models, clients, users, the audit trail
connection  how operator commands reach a server
common      options, output and logging of all commands
top         `fedloom top`, a live view of a server
"""
