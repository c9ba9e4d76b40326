"""The law of the layers: a module imports from its own package, from lower layers, or from a
package of its own layer that does not import it back.
"""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "oxillama"
LAYERS = {
    "errors": 0,
    "arguments": 0,
    "durable": 0,
    "folders": 0,
    "decimals": 0,
    "_core": 1,
    "gguf": 2,
    "tokenizer": 2,
    "model": 3,
    "weights": 3,
    "quant": 3,
    "convert": 4,
    "lora": 4,
    "options": 4,
    "sampling": 4,
    "vision": 4,
    "audio": 4,
    "media": 4,
    "grammar": 4,
    "engine": 5,
    "completion": 5,
    "snapshot": 5,
    "speculative": 5,
    "toolcalls": 5,
    "__init__": 6,
    "about": 6,
    "api": 6,
    "asynchronous": 6,
    "capi": 6,
    "chat": 6,
    "embedded": 6,
    "media_prompts": 6,
    "loaded": 6,
    "opening": 6,
    "quality": 6,
    "recommended": 6,
    "stores": 6,
    "threadpool": 6,
    "transcription": 6,
    # the part of the package that is public API, above `api`
    "speculative.engine": 6,
    "speculative.decoder": 6,
    "server": 7,
    "compat": 7,
    "integrations": 7,
    "cli": 8,
    "__main__": 8,
}
# A bridge can be asked for by file name alone, so this one function of the tokenizer opens the
# container (tokenizer.bridge.from_gguf).
EXCEPTIONS = {("tokenizer", "gguf")}


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def package_of(path: Path) -> str:
    """The first name below `oxillama`: a package, or a module at the top; a module of a package
    where the table names it.
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    whole = ".".join(parts)
    return whole if whole in LAYERS else parts[0]


@cache
def imported(path: Path) -> frozenset[str]:
    """Packages of this project that the file imports, anywhere in the file."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = (
                path.relative_to(ROOT.parent).with_suffix("").parts[: -node.level]
                if node.level
                else ()
            )
            base = ".".join((*package, node.module) if node.module else package)
            names = (
                [base] if base != "oxillama" else [f"oxillama.{alias.name}" for alias in node.names]
            )
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "oxillama":
                whole = ".".join(parts[1:3])
                found.add(
                    whole
                    if whole in LAYERS
                    else parts[1]
                    if len(parts) > 1 and parts[1] in LAYERS
                    else "__init__"
                )
    return frozenset(found)


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_import_nothing_from_higher_layers(path):
    mine = package_of(path)
    assert mine in LAYERS, f"{mine} is in no layer"
    for other in imported(path) - {mine}:
        if (mine, other) not in EXCEPTIONS:
            assert LAYERS[other] <= LAYERS[mine], f"{path} imports {other}"


def test_packages_of_one_layer_import_one_another_in_one_direction_only():
    graph = {name: set() for name, layer in LAYERS.items() if layer < 6}
    for path in FILES:
        mine = package_of(path)
        if mine in graph:
            graph[mine] |= {other for other in imported(path) - {mine} if other in graph}
    for mine, other in EXCEPTIONS:
        graph[mine].discard(other)
    assert set(TopologicalSorter(graph).static_order()) == graph.keys()


def test_compiled_modules_import_compiled_modules_and_errors_only_without_a_circle():
    graph = {}
    for path in sorted(
        one for kind in ("pyx", "pxd") for one in (ROOT / "_core").glob(f"*.{kind}")
    ):
        mine = graph.setdefault(path.stem, set())
        for home, names in re.findall(
            r"^\s*from (oxillama[\w.]*) c?import \(?([^)\n]*)", path.read_text(), re.MULTILINE
        ):
            assert home == "oxillama.errors" or home.startswith("oxillama._core"), f"{path}: {home}"
            if home == "oxillama._core":
                mine.update(re.findall(r"\w+", names))
            elif home != "oxillama.errors":
                mine.add(home.removeprefix("oxillama._core."))
    for module, others in graph.items():
        others.discard(module)  # a .pyx and its own .pxd
    assert set(TopologicalSorter(graph).static_order()) >= graph.keys()


# their modules are found by a scan of the folder
SCANNED = {
    *(ROOT / "model" / "arch", ROOT / "model" / "encoders"),
    *(ROOT / "convert" / "families", ROOT / "vision" / "families", ROOT / "audio" / "families"),
}
PACKAGES = {path.parent for path in ROOT.glob("*/**/__init__.py")} - SCANNED


@pytest.mark.parametrize("home", sorted(PACKAGES), ids=lambda path: path.name)
def test_a_package_docstring_names_every_module_in_it(home):
    words = set(re.findall(r"\w+", ast.get_docstring(parsed(home / "__init__.py"))))
    sources = [path for kind in ("py", "pyx") for path in home.glob(f"*.{kind}")]
    assert {path.stem for path in sources if not path.stem.startswith("__")} <= words


def test_c_sources_know_nothing_of_python_memory_or_threads():
    system = ROOT.parent / "csrc" / "os"
    for path in sorted((ROOT.parent / "csrc").rglob("*.[ch]")):
        if path.parent == system:
            continue
        text = path.read_text()
        for word in ("#include <Python.h>", "malloc(", "omp.h>", "#pragma omp"):
            assert word not in text, f"{path}: {word}"


def test_no_module_has_a_name_that_says_nothing():
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
    assert not [path for path in ROOT.rglob("*") if path.stem in empty]


@cache
def imports_of_modules() -> dict[str, set[str]]:
    """The modules that each module of the package imports, anywhere in its file."""
    modules = {
        ".".join(("oxillama", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in FILES
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = graph.setdefault(name, set())
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found.add(inner if inner in modules else node.module)
        found &= modules.keys() - {name}
    return graph


def test_no_modules_import_one_another_in_a_circle():
    graph = imports_of_modules()
    assert set(TopologicalSorter(graph).static_order()) == graph.keys()


def test_the_engine_has_few_layers_and_few_arrows():
    def inside(name: str) -> bool:
        return name.startswith("oxillama.engine.") and name != "oxillama.engine.memory"

    graph = {
        name: {other for other in others if inside(other)}
        for name, others in imports_of_modules().items()
        if inside(name)
    }
    depth: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        depth[name] = 1 + max((depth[other] for other in graph[name]), default=0)
    assert max(depth.values()) <= 8
    assert sum(map(len, graph.values())) <= 50


def test_nothing_but_an_architecture_asks_what_the_architecture_is():
    """What differs between models is data of the place that differs, not a comparison of names."""
    for path in sorted(ROOT.rglob("*.py")):
        if ROOT / "model" / "arch" in path.parents:
            continue
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            asked = [s for s in sides if getattr(s, "attr", getattr(s, "id", "")) == "arch"]
            told = [
                leaf
                for side in sides
                for leaf in ast.walk(side)
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
            ]
            assert not (asked and told), f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_the_glossary_names_every_class_of_the_engine_and_no_other():
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    listed = text.split("**Classes of the engine**")[1]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", listed, re.M))))
    classes = {
        node.name
        for path in (ROOT / "engine").rglob("*.py")
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    assert named == classes
