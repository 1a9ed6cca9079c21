"""Imports go one way, heavy libraries stay where they belong, files stay small."""

import ast
import graphlib
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "torchdata_insitu"
NAME = PACKAGE.name
FILES = sorted(PACKAGE.rglob("*.py"))

# The layer of every module or package at the top level; a module imports lower layers only.
LAYERS = {
    "errors": 0,
    "gate": 0,
    "page_memory": 0,
    "process_check": 0,
    "redaction": 0,
    "geometry": 1,
    "planning": 2,
    "fetch": 2,
    "pool": 2,
    "gather": 2,
    "nodes": 3,
    "batch_sampler_hook": 4,
    "chain": 4,
    "loader_iterator": 4,
    "loader_place": 4,
    "loader_state": 4,
    "loader_stats": 4,
    "loader": 4,
    "describe": 5,
    "iterable_dataset": 5,
    "mask_invalid": 5,
    "open_arrays": 5,
    "pipeline": 5,
    "rank_check": 5,
    "state_description": 5,
    "testing": 6,
    "lightning_": 6,
    "__init__": 7,
}
# Modules of these meet in nodes/ only. The others of one level may import each other.
MIDDLE = {"planning", "fetch", "pool", "gather"}

# Where a library may be imported, as prefixes of the path inside the package.
TORCH = (
    *("nodes/", "chain", "loader", "describe", "iterable_dataset", "pipeline", "rank_check"),
    *("mask_invalid", "testing/", "lightning_/"),
    "geometry/torch_dtypes.py",
)
ZARR = ("geometry/metadata.py", "geometry/array_reading.py", "fetch/", "testing/")
HOMES = {
    "torch": TORCH,
    "torchdata": TORCH,
    "zarr": ZARR,
    "obstore": ZARR,
    "numcodecs": ZARR,
    "lightning": ("lightning_/",),
    "pytorch_lightning": ("lightning_/",),
    "matplotlib": (),
    "xarray": (),
}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


@each_file
def test_imports_go_to_lower_layers(path):
    own = layer_name(dotted(path))
    for module in imported_modules(path, all_nodes(path)):
        other = layer_name(module)
        if other == own:
            continue
        assert not {own, other} <= MIDDLE, f"{own} imports {module}: they meet in nodes/"
        assert LAYERS[other] <= LAYERS[own], f"{own} imports {module} of a higher layer"


@each_file
def test_libraries_are_imported_in_their_homes_only(path):
    inside = str(path.relative_to(PACKAGE))
    for library in imported_libraries(path, nodes_at_run(path)):
        homes = HOMES.get(library)
        assert homes is None or inside.startswith(homes), f"{inside} imports {library}"


@each_file
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= 400


@each_file
def test_no_module_is_a_drawer_for_everything(path):
    assert path.stem not in {"utils", "common", "helpers", "types", "misc"}


@each_file
def test_every_top_level_name_has_a_layer(path):
    assert layer_name(dotted(path)) in LAYERS


def test_imports_have_no_cycle():
    graph = {dotted(path): imported_modules(path, nodes_at_import(path)) for path in FILES}
    graphlib.TopologicalSorter(graph).prepare()


def dotted(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def layer_name(module):
    return module.split(".")[1]


def imported_names(path, nodes):
    """Every module that the statements ``nodes`` of a file import, as (module, name or None)."""
    package = path.relative_to(PACKAGE.parent).parent.parts
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def imported_modules(path, nodes):
    """The modules of this package that the statements ``nodes`` of a file import."""
    found = set()
    for module, name in imported_names(path, nodes):
        if module.split(".")[0] != NAME:
            continue
        inner = "/".join([*module.split("."), *([name] if name else [])])
        is_module = (PACKAGE.parent / f"{inner}.py").exists() or (PACKAGE.parent / inner).is_dir()
        whole = f"{module}.{name}" if name and is_module else module
        found.add(f"{NAME}.__init__" if whole == NAME else whole)
    return found - {dotted(path)}


def imported_libraries(path, nodes):
    return {module.split(".")[0] for module, _ in imported_names(path, nodes)}


def all_nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


def nodes_at_import(path):
    """What runs when the file is imported.

    Imports in functions and under TYPE_CHECKING are how two classes of a layer may know each other.
    """
    return ast.parse(path.read_text()).body


def nodes_at_run(path):
    """All that can run: everything but what stands under TYPE_CHECKING."""
    todo = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))
