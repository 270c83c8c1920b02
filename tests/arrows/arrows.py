"""Rules of the tree: who may include whom, file lengths, what binaries link and export. Used by arrows_test.py."""

import re
import subprocess
from pathlib import Path

SOURCE_FOLDERS = ("common", "engine", "worker", "server", "client")
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
LENGTH_SUFFIXES = SOURCE_SUFFIXES | {".proto", ".py", ".sh", ".rs"}
MAX_LINES = 450
# Longer files, each with the reason why it is one subject that does not split.
LONG_FILES = {
    "proto/slipway/v1/training_spec.proto": "the one definition of a job's configuration",
}
TORCH_FOLDERS = {"engine/comm", "engine/ops", "engine/ops/cuda", "engine/nn", "engine/model", "engine/parallel",
                 "engine/optim", "engine/checkpoint", "engine/train", "worker/host"}
TORCH_HEADER = re.compile(r"(torch|ATen|c10)/")
GRPC_HEADER = re.compile(r"grpc(pp|\+\+)?/|.*\.grpc\.pb\.h$")
GRPC_FOLDERS = {"worker/agent", "server/rpc", "server/app", "client"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
IMPORT = re.compile(r'^\s*import\s+(?:public\s+)?"([^"]+)"\s*;', re.MULTILINE)


def read_layers(text):
    """cmake/layers.txt as {folder: set of folders that it may use}."""
    layers = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        folder, _, allowed = line.partition(":")
        layers[folder.strip()] = set(allowed.split())
    return layers


def find_cycle(graph):
    """A list of nodes that leads from a node back to itself, or None. Iterative: graphs of files are deep."""
    done = set()
    for start in graph:
        if start in done:
            continue
        path, on_path = [start], {start}
        stack = [iter(sorted(graph.get(start, ())))]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                done.add(path[-1])
                on_path.discard(path.pop())
                stack.pop()
            elif following in on_path:
                return path[path.index(following):] + [following]
            elif following not in done:
                path.append(following)
                on_path.add(following)
                stack.append(iter(sorted(graph.get(following, ()))))
    return None


def layer_of(path, layers):
    """The listed folder that a file belongs to: the nearest one above it."""
    folder = Path(path).parent
    while folder != Path("."):
        if folder.as_posix() in layers:
            return folder.as_posix()
        folder = folder.parent
    return None


def resolve(root, include):
    """The path in the tree of an include of ours; None for a foreign one. Raises ValueError for one that is missing."""
    generated = re.fullmatch(r"(.+?)(?:\.grpc)?\.pb\.h", include)
    if generated:
        proto = f"proto/{generated.group(1)}.proto"
        if (root / proto).exists():
            return proto
        if include.startswith("slipway/"):
            raise ValueError(f"there is no {proto}")
        return None
    if include == "tests/support/source_dir.h":  # made by CMake
        return "tests/support/source_dir.h"
    if include.split("/")[0] in SOURCE_FOLDERS + ("tests",):
        if not (root / include).exists():
            raise ValueError(f"there is no {include}")
        return include
    return None


def source_files(root, suffixes, folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if path.suffix in suffixes and path.is_file() and not {"target", "__pycache__"} & set(parts):
                yield path.relative_to(root).as_posix()


def check_includes(root, layers):
    """Faults of all #include and import lines against the table, and include cycles."""
    faults, graph = [], {}
    for path in source_files(root, SOURCE_SUFFIXES, SOURCE_FOLDERS):
        layer = layer_of(path, layers)
        if layer is None:
            faults.append(f"{path}: its folder has no line in cmake/layers.txt")
            continue
        for quote, include in INCLUDE.findall((root / path).read_text(encoding="utf-8")):
            if layer not in TORCH_FOLDERS and TORCH_HEADER.match(include):
                faults.append(f"{path}: {layer} is free of torch but includes {include}")
            if layer not in GRPC_FOLDERS and GRPC_HEADER.match(include):
                faults.append(f"{path}: {layer} is free of gRPC but includes {include}")
            try:
                target = resolve(root, include)
            except ValueError as error:
                faults.append(f"{path}: includes {include}, but {error}")
                continue
            if target is None:
                if quote == '"' and "/" not in include:
                    faults.append(f"{path}: include \"{include}\" by its path from the root")
                continue
            graph.setdefault(path, set()).add(target)
            if target.startswith("tests/"):
                if not path.endswith("_test.cc"):
                    faults.append(f"{path}: only tests may include {include}")
                continue
            target_layer = layer_of(target, layers)
            if target_layer != layer and target_layer not in layers[layer]:
                faults.append(f"{path}: {layer} may not use {target_layer} ({include}); see cmake/layers.txt")
    faults += check_imports(root, layers)
    cycle = find_cycle(graph)
    if cycle:
        faults.append("include cycle: " + " -> ".join(cycle))
    return faults


def check_imports(root, layers):
    faults = []
    for path in source_files(root, {".proto"}, ["proto"]):
        layer = layer_of(path, layers)
        for imported in IMPORT.findall((root / path).read_text(encoding="utf-8")):
            target = layer_of(f"proto/{imported}", layers)
            if layer is None or (target is not None and target != layer and target not in layers[layer]):
                faults.append(f"{path}: {layer} may not use {target} ({imported}); see cmake/layers.txt")
    return faults


def check_layers(layers):
    """Faults of the table itself."""
    faults = []
    for folder, allowed in layers.items():
        unknown = sorted(allowed - set(layers))
        faults += [f"cmake/layers.txt: {folder} uses {other}, which has no line" for other in unknown]
    cycle = find_cycle(layers)
    if cycle:
        faults.append("cmake/layers.txt: cycle " + " -> ".join(cycle))
    return faults


def check_lengths(root, long_files=None):
    long_files = LONG_FILES if long_files is None else long_files
    faults = []
    folders = SOURCE_FOLDERS + ("proto", "scripts", "tests")
    for path in source_files(root, LENGTH_SUFFIXES, folders):
        lines = len((root / path).read_bytes().splitlines())
        if lines > MAX_LINES and path not in long_files:
            faults.append(f"{path}: {lines} lines, more than {MAX_LINES}; split it by subject")
    return faults


def may_link_torch(name):
    return name == "slipway-worker" or name.endswith(("_test", "_bench"))


def needed_libraries(readelf_text):
    return re.findall(r"\(NEEDED\).*\[([^\]]+)\]", readelf_text)


def torch_links(name, libraries):
    if may_link_torch(name):
        return []
    return [f"{name} links {library}; only slipway-worker and tests may"
            for library in libraries if re.match(r"lib(torch|c10)", library)]


def exported_protobuf(nm_text):
    """Symbols of protobuf that a binary defines and exports: LibTorch brings another version, and the two would mix."""
    return [line for line in nm_text.splitlines() if "google::protobuf" in line]


def run_tool(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def is_elf(path):
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def check_binaries(bin_dir):
    faults = []
    for path in sorted(Path(bin_dir).iterdir()) if Path(bin_dir).is_dir() else []:
        if not is_elf(path):
            continue
        faults += torch_links(path.name, needed_libraries(run_tool("readelf", "-d", str(path))))
        if path.name == "slipway-worker":
            symbols = exported_protobuf(run_tool("nm", "-DC", "--defined-only", str(path)))
            faults += [f"slipway-worker exports {symbol}" for symbol in symbols[:5]]
    return faults
