"""What an editor and help() show of the package: types and a text for all that is public."""
import enum
import inspect
import os
import subprocess
import sys

import pytest

import kvpool
import kvpool.attention
import kvpool.lmcache
from conftest import TOP

PACKAGE = TOP / "client" / "python" / "kvpool"


def _public():
    """(name, object) of classes, methods and functions"""
    modules = [(kvpool, kvpool.__all__), (kvpool.attention, ["attend", "geometry", "isa", "put", "put_sequence"]),
               (kvpool.lmcache, ["NativeClient"])]
    for module, names in modules:
        for name in names:
            thing = getattr(module, name)
            if not callable(thing):
                continue
            yield f"{module.__name__}.{name}", thing
            if not inspect.isclass(thing) or issubclass(thing, (enum.Enum, tuple)):
                continue
            for base in thing.__mro__:
                if not base.__module__.startswith("kvpool"):
                    continue
                for part, value in vars(base).items():
                    value = getattr(value, "__func__", value)
                    if part.startswith("_") and part != "__init__":
                        continue
                    value = value.fget if isinstance(value, property) else value
                    if inspect.isfunction(value):
                        yield f"{module.__name__}.{name}.{part}", value


def test_every_public_call_has_types():
    bare = []
    for name, thing in _public():
        if inspect.isclass(thing):
            continue
        signature = inspect.signature(thing)
        parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
        returns = name.endswith("__init__") or signature.return_annotation is not inspect.Signature.empty
        if not returns or any(p.annotation is inspect.Parameter.empty for p in parameters):
            bare.append(name)
    assert not bare


def test_every_public_class_says_what_it_is():
    inherited = {cls.__doc__ for cls in (enum.IntEnum, enum.Enum, OSError, tuple, object, bytes)}
    silent = [name for name, thing in _public() if inspect.isclass(thing) and thing is not bytes
              and (not thing.__doc__ or thing.__doc__ in inherited or thing.__doc__.startswith(f"{thing.__name__}("))]
    assert not silent


def test_mypy_finds_nothing_in_the_package_nor_in_its_readme(tmp_path):
    pytest.importorskip("mypy")
    example = (TOP / "client" / "python" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "example.py").write_text(example)
    files = [PACKAGE / name for name in ("__init__.py", "_api.py", "_buffer.py", "_lib.py", "attention.py", "lmcache.py")]
    run = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *map(str, files),
                          str(tmp_path / "example.py")], capture_output=True, text=True, cwd=tmp_path, timeout=600,
                         env=dict(os.environ, MYPYPATH=str(PACKAGE.parent)))
    assert run.returncode == 0, run.stdout + run.stderr
