"""Compiled code that numba keeps is that of the present sources."""

import os

from fintrader.envs.fast.compiled import drop_old_code


def test_code_of_other_sources_is_dropped(tmp_path):
    """An edit of one file takes the code of all with it: functions of one become part of
    another's."""
    for folder in ("envs/fast", "agents/fast"):
        (tmp_path / folder / "__pycache__").mkdir(parents=True)
    source = tmp_path / "envs" / "money.py"
    source.write_text("GRID = 1")
    code = [
        tmp_path / folder / "__pycache__" / "batch.step.nbi"
        for folder in ("envs/fast", "agents/fast")
    ]

    def compile_all():
        for path in code:
            path.touch()

    compile_all()  # by a version that left no stamp
    drop_old_code(tmp_path)
    assert not any(path.exists() for path in code)
    compile_all()
    drop_old_code(tmp_path)
    assert all(path.exists() for path in code)
    source.write_text("GRID = 2")
    os.utime(source, ns=(0, 0))
    drop_old_code(tmp_path)
    assert not any(path.exists() for path in code)
    assert len(list((tmp_path / "envs/fast/__pycache__").iterdir())) == 1
