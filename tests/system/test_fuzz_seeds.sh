#!/usr/bin/env bash
# kvpool-test: parallel static
# Every seed of every fuzz target goes through it once, under the sanitizers.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$top/build}
for target in "$top"/tests/fuzz/fuzz_*.c; do
	name=$(basename "$target" .c)
	name=${name#fuzz_}
	"$build/seeds/fuzz/replay_$name" "$top/tests/fuzz/seeds/$name"
done
