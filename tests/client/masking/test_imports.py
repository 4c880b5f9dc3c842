"""The cryptography of masking is loaded only where a masked task comes."""

import json
import subprocess
import sys


def loaded(program):
    program += "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return json.loads(done.stdout)


def test_an_agent_does_not_load_it():
    """Nor the sessions on the device."""
    modules = loaded("import fedloom.client.agent.agent")
    assert "fedloom.client.agent.masked_tasks" in modules
    assert not [name for name in modules if name.startswith("fedloom.client.masking")]
    assert "fedloom.protocol.masking.member" not in modules


def test_a_training_process_has_no_part_in_it():
    """Training code runs there: no secret of a session may."""
    modules = loaded("import fedloom.client.agent.training_child")
    assert not [name for name in modules if name.startswith("fedloom.client.masking")]
    assert "fedloom.protocol.masking.member" not in modules


def test_a_masked_task_loads_no_other_packages():
    """Than those that the agent has: numpy, cryptography and the wire."""
    before = loaded("import fedloom.client.agent.agent")
    after = loaded("import fedloom.client.agent.agent, fedloom.client.masking.tasks")
    roots = {name.partition(".")[0] for name in after} - {name.partition(".")[0] for name in before}
    assert {name for name in roots if not name.startswith("_")} <= set(sys.stdlib_module_names)
