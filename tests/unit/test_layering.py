"""The layers of the package: its core knows nothing of verl, and importing it costs nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "verl_dots"
FRAMEWORK = {"verl", "ray", "hydra", "omegaconf", "transfer_queue"}
INTEGRATION = ("integration", "cpu")  # the packages that may import verl


def imported(path: Path) -> set[str]:
    """Top-level names of everything a file imports, at any depth, under any condition."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            names |= {str(arg.value).split(".")[0] for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return names


def sources(*, core: bool) -> list[Path]:
    return [
        path for path in sorted(PACKAGE.rglob("*.py")) if (path.relative_to(PACKAGE).parts[0] not in INTEGRATION) == core
    ]


def test_the_scan_sees_every_form_of_import(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        "import a.b as c\nfrom d.e import f\nfrom . import g\nif 0:\n    import h\n"
        "def k():\n    import importlib\n    importlib.import_module('i.j')\n    __import__('l')\n"
    )
    assert imported(path) == {"a", "d", "h", "importlib", "i", "l"}
    assert {PACKAGE / "types.py", PACKAGE / "sampler.py"} <= set(sources(core=True))


@pytest.mark.parametrize("path", sources(core=True), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_does_not_import_the_framework(path):
    assert imported(path) & FRAMEWORK == set()


def test_one_file_alone_imports_transfer_queue():
    users = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "transfer_queue" in imported(path)}
    assert users <= {"integration/store.py"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("verl_dots", {"torch", "numpy", "verl", "ray"}),
        ("verl_dots.types", {"torch", "verl", "ray"}),
        ("verl_dots.config", {"torch", "verl", "ray"}),
        ("verl_dots.selection", {"torch", "verl", "ray"}),
        ("verl_dots.sampler", FRAMEWORK),
    ],
)
def test_importing_it_pulls_in_nothing_heavy(module, absent):
    code = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert set(result.stdout.split()) & absent == set()
