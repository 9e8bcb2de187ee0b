"""What the package promises as a package: data, version, layers, nothing of one machine."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest

import shardinv

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "shardinv"
SOURCES = ("src", "tests", "docs", "scripts", "examples", "benchmarks")


@pytest.fixture(scope="module")
def project() -> dict:
    """The contents of ``pyproject.toml``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def text_files() -> list[Path]:
    """Return the text files of the repository, those in the root too."""
    files = [f for folder in SOURCES for f in (ROOT / folder).rglob("*")]
    files += [f for f in ROOT.glob("*") if f.suffix != ".lock"]
    kinds = {"", ".py", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".json", ".csv", ".cfg"}
    return [f for f in files if f.is_file() and f.suffix in kinds and "__pycache__" not in f.parts]


def test_version_is_that_of_the_project_file(project: dict) -> None:
    assert shardinv.__version__ == metadata.version("shardinv") == project["project"]["version"]


def test_data_ships_with_the_package() -> None:
    data = resources.files("shardinv") / "data"
    for folder, suffix in (("photos", ".jpg"), ("weights", ".pt")):
        names = [entry.name for entry in (data / folder).iterdir()]
        assert any(name.endswith(suffix) for name in names), f"no {suffix} in {folder}: {names}"


def test_data_is_small_enough_to_ship() -> None:
    size = sum(file.stat().st_size for file in (PACKAGE / "data").rglob("*") if file.is_file())
    assert size < 15e6


def test_type_information_ships() -> None:
    assert (resources.files("shardinv") / "py.typed").is_file()


def test_layer_contract_names_every_module(project: dict) -> None:
    contract = project["tool"]["importlinter"]["contracts"][0]
    named = set(contract["exhaustive_ignores"])
    for layer in contract["layers"]:
        named |= {name.strip(" ()") for name in layer.replace("|", ":").split(":")}
    present = {f.parent.name for f in PACKAGE.glob("*/*.py")} | {
        f.stem for f in PACKAGE.glob("*.py")
    }
    assert present - {"__init__"} <= named


def imported_modules(tree: ast.Module) -> set[str]:
    """Return the full names that the import statements of a module may load."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_nothing_in_the_package_imports_the_peer() -> None:
    # import-linter sees an external package as a whole, so it can't tell deepinv.distributed apart.
    for file in PACKAGE.rglob("*.py"):
        names = imported_modules(ast.parse(file.read_text()))
        peer = {name for name in names if f"{name}.".startswith("deepinv.distributed.")}
        assert not peer, f"{file.relative_to(ROOT)} imports {peer}"


def test_geometry_loads_no_torch() -> None:
    # The folder by itself, since `import shardinv` loads everything.
    program = (
        "import sys, types\n"
        f"package = types.ModuleType('shardinv'); package.__path__ = [{str(PACKAGE)!r}]\n"
        "sys.modules['shardinv'] = package\n"
        "import shardinv.geometry\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_no_file_mentions_a_path_of_one_machine() -> None:
    # In two parts, so that this file passes its own test.
    machine_paths = ["/wo" + "rk/", "/opt/" + "wheels"]
    for file in text_files():
        text = file.read_text(errors="replace")
        found = [path for path in machine_paths if path in text]
        assert not found, f"{file.relative_to(ROOT)} mentions {found}"
