#!/usr/bin/env python3
"""Real public text as JSONL, one document a paragraph: the licence texts that every Debian system carries.

usage: make_corpus.py OUT.jsonl
"""
import json
import sys
from pathlib import Path

documents = []
for path in sorted(Path("/usr/share/common-licenses").iterdir()):
    if path.is_file() and not path.is_symlink():
        text = path.read_text(encoding="utf-8", errors="replace")
        documents += [" ".join(part.split()) for part in text.split("\n\n") if len(part.split()) > 8]
with open(sys.argv[1], "w", encoding="utf-8") as out:
    for document in documents:
        out.write(json.dumps({"text": document}) + "\n")
print(f"{sys.argv[1]}: {len(documents)} documents")
