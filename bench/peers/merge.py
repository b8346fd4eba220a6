#!/usr/bin/env python3
"""merge.py OUT.json IN.json ...: the peers of several programs in one file, and their tensor_tflops."""
import json
import sys

merged = {"peers": {}}
for path in sys.argv[2:]:
    with open(path) as file:
        part = json.load(file)
    for key, peers in part.pop("peers").items():
        merged["peers"].setdefault(key, []).extend(peers)
    merged.update(part)
with open(sys.argv[1], "w") as file:
    json.dump(merged, file, indent=1)
