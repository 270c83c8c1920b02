#!/usr/bin/env python3
"""Every *_test.cc of the tree is compiled by some test target.    usage: registered_test.py SOURCE_DIR REGISTERED_LIST"""
import sys
from pathlib import Path

FOLDERS = ["common", "engine", "worker", "server", "client", "tests"]

source_dir, registered_list = Path(sys.argv[1]), Path(sys.argv[2])
registered = set(registered_list.read_text().split())
found = {str(path) for folder in FOLDERS for path in (source_dir / folder).rglob("*_test.cc")}
missing = sorted(found - registered)
for path in missing:
    print(f"{path} is in no slipway_cc_test", file=sys.stderr)
print(f"{len(found)} test files, {len(missing)} not registered")
sys.exit(1 if missing or not found else 0)
