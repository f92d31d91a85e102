import subprocess
import sys


def test_settings_of_agents_load_no_torch():
    """So that help texts, refusals and configurations stay light."""
    code = (
        "import sys; from fintrader.agents import PPO, SAC, Budget, NetworkSettings;"
        " PPO(network=NetworkSettings(hidden=(8,))), SAC(), Budget(env_steps=1);"
        " assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
