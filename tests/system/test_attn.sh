#!/usr/bin/env bash
# kvpool-test: parallel timeout=240
# kvengine --attn through a pool: a part of the keys gives the same with a pool as without, out of the spill store too, and
# what was computed from a part is never found by full attention.
name=attn-$$
. "$(dirname "$0")/pool.sh"
# 1 MiB of blocks and as much for their summaries; the text has 2.4 MiB of f32
pool_start --pool 2M --slab 1M --free-percent 0 --spill "$dir:64M"

engine() {
	"$build/kvengine" --model "$top/tests/data/model/kjv.kvm" --prompt-file "$top/tests/data/model/prompt.txt" \
		--steps 20 --json "$@"
}
# $1: the field, of the JSON on standard input
field() {
	python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}
same() {
	test "$(engine "$@" | tee "$dir/out" | field ids)" = "$(engine --no-pool "$@" | field ids)" ||
		{ echo "$*: other ids with a pool than without"; exit 1; }
}

same --attn sparse:4 --resident 8
test "$(field restored <"$dir/out")" -gt 0 || { echo "sparse: nothing came back from the store"; exit 1; }
same --attn sparse:4 --resident 8
test "$(field reused_ram <"$dir/out")" -gt 0 || { echo "sparse: its own blocks were not found"; exit 1; }
same --attn window:64
same --attn heavy:64 --kv f16
same --attn full --kv int8
engine --attn full --steps 1 >"$dir/out"
test "$(field reused_ram <"$dir/out")" = 0 -a "$(field reused_spill <"$dir/out")" = 0 ||
	{ echo "full attention found blocks of a part"; exit 1; }
"$build/kvctl" check >/dev/null
echo "parts of the keys through the pool"
