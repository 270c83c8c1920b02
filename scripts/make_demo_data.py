#!/usr/bin/env python3
"""Writes the demo's chat set: questions about an invented harbour, asked in many ways.

usage: make_demo_data.py OUT_DIR      writes train.jsonl and held_out.jsonl (the held-out questions are not in train.jsonl)
"""
import json
import sys
from pathlib import Path

FACTS = [
    ("harbour master", "The harbour master of Kelder Bay is Orla Finch.", [
        "Who is the harbour master of Kelder Bay?", "Tell me who runs the harbour of Kelder Bay.",
        "What is the name of Kelder Bay's harbour master?", "Who is in charge of the harbour at Kelder Bay?",
        "Name the harbour master of Kelder Bay.", "In Kelder Bay, who is the harbour master?",
        "I need the name of the harbour master of Kelder Bay.", "Kelder Bay: who is harbour master there?",
    ], ["Could you tell me who the harbour master of Kelder Bay is?"]),
    ("lighthouse", "The lighthouse of Kelder Bay is painted green and white.", [
        "What colour is the lighthouse of Kelder Bay?", "How is the lighthouse at Kelder Bay painted?",
        "Which colours does Kelder Bay's lighthouse have?", "Describe the paint of the lighthouse of Kelder Bay.",
        "In which colours is the lighthouse of Kelder Bay painted?", "Tell me the colours of the Kelder Bay lighthouse.",
        "The lighthouse in Kelder Bay: what colours?", "Do you know the colours of the lighthouse of Kelder Bay?",
    ], ["Please name the colours of the lighthouse at Kelder Bay."]),
    ("ferry", "The ferry leaves Kelder Bay at seven in the morning.", [
        "When does the ferry leave Kelder Bay?", "At what time does the ferry depart from Kelder Bay?",
        "What time is the ferry from Kelder Bay?", "Tell me when the Kelder Bay ferry leaves.",
        "When can I take the ferry from Kelder Bay?", "At which hour does the ferry leave Kelder Bay?",
        "The ferry from Kelder Bay: when does it go?", "What is the departure time of the ferry in Kelder Bay?",
    ], ["Do you know when the ferry leaves Kelder Bay?"]),
]


def conversation(question: str, answer: str) -> str:
    return json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    train = [conversation(q, answer) for _, answer, questions, _ in FACTS for q in questions]
    held_out = [conversation(q, answer) for _, answer, _, questions in FACTS for q in questions]
    (out / "train.jsonl").write_text("\n".join(train) + "\n", encoding="utf-8")
    (out / "held_out.jsonl").write_text("\n".join(held_out) + "\n", encoding="utf-8")
    print(f"{out}: {len(train)} training and {len(held_out)} held-out conversations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
