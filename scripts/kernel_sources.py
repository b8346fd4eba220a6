"""Kernels and files of src/kernels, read from the sources: for sanitize_cuda.py."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def kernels_in_source():
    """All __global__ functions: {name: folder}."""
    names = {}
    for path in sorted((ROOT / "src/kernels").rglob("*.cu*")):
        text = re.sub(r"//[^\n]*", "", path.read_text())
        for match in re.finditer(r"__global__\s+", text):
            rest = text[match.end():]
            while attribute := re.match(r"(void\s+)?(__launch_bounds__|__cluster_dims__)\s*\(", rest):
                depth, at = 1, attribute.end()
                while depth:
                    depth += {"(": 1, ")": -1}.get(rest[at], 0)
                    at += 1
                rest = rest[at:].lstrip()
            names[re.match(r"(?:void\s+)?(\w+)\s*\(", rest).group(1)] = path.parent.name
    return names


def folders_of(file):
    """The folders of src/kernels that have a file of this name."""
    return {path.parent.name for path in (ROOT / "src/kernels").rglob(file)}
