#!/usr/bin/env python3
"""Writes pinned.h: the ids that tests/unit/test_engine_pinned.c expects.  Run after new weights: pin.py KVENGINE > pinned.h"""
import json, os, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHORT = "And it came to pass in those days, that"
STEPS = 48


def ids(engine, prompt, kv):
    out = subprocess.run([engine, "--model", os.path.join(HERE, "kjv.kvm"), "--prompt", prompt, "--no-pool", "--json", "--steps",
                          str(STEPS), "--kv", kv], check=True, capture_output=True, text=True).stdout
    run = json.loads(out)
    print(kv, run["text"][len(prompt):], file=sys.stderr)
    return run["ids"][run["prompt_tokens"]:]


def table(engine, name, prompt):
    print(f"\nstatic const struct pinned {name}[] = {{")
    for kv in ("f32", "f16", "bf16"):
        print(f'\t{{"{name}, {kv}", KVATTN_{kv.upper()},\n\t\t{{' + ", ".join(map(str, ids(engine, prompt, kv))) + "}},")
    print("};")


def read(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        return f.read()


def main():
    print("/* pinned.h - written by pin.py; included by test_engine_pinned.c */")
    print("/* clang-format off */")
    print("#define PINNED_PROMPT " + json.dumps(SHORT))
    table(sys.argv[1], "pinned_short", SHORT)
    table(sys.argv[1], "pinned_long", read("prompt.txt") + read("ending-a.txt"))


main()
