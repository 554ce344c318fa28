#!/usr/bin/env bash
# kvpool-test: parallel static timeout=300
# B75: on processors that lack instructions, or a system that does not save the wide registers, the level chosen is one that
# is really there, and the results are right.  Emulated: what the processor lacks is SIGILL there as on a real one.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$top/build}" && pwd)
command -v qemu-x86_64 >/dev/null && [ "$(uname -m)" = x86_64 ] || { echo "qemu-user is not installed"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
emulated() { qemu-x86_64 -cpu "$@" 2>"$dir/err"; } # what this emulator has not of a processor is told there

# the emulator does refuse: else nothing below proves anything
cat >"$dir/wide.c" <<'C'
int main(void)
{
	__asm__ volatile("vpabsd %ymm0, %ymm0");
	return 0;
}
C
cc -o "$dir/wide" "$dir/wide.c"
emulated Haswell "$dir/wide" || { echo "AVX2 is refused where it is"; exit 1; }
emulated Nehalem "$dir/wide" && { echo "AVX2 runs on a processor without"; exit 1; }

# CPU LEVEL: what is chosen by itself, then some numeric cases with it, in this process (it would go on natively in a child)
runs() {
	local got some
	got=$(emulated "$1" -E ATTN_SAY_ISA=1 "$build/test/test_attn_block")
	[ "$got" = "$2" ] || { echo "on $1: $got instead of $2"; exit 1; }
	for some in 'doubling*' '*mask*' 'query_heads*' 'sums_do*'; do
		emulated "$1" -E "KVATTN_ISA=$2" -E "ATTN_ONLY=$some" "$build/test/test_attn_numeric" >"$dir/out" ||
			{ tail -n 20 "$dir/out" "$dir/err"; echo "$some of test_attn_numeric on $1: failed"; exit 1; }
		grep -q '  PASSED  . [1-9]' "$dir/err" # where cmocka says it
	done
}
runs Nehalem scalar
runs Haswell avx2
runs Haswell,-xsave scalar
echo "three processors, each with what it has"
