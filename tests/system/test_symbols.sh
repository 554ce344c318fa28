#!/usr/bin/env bash
# kvpool-test: parallel static
# The shared libraries export kvp_ and kvattn_ names only, and the headers serve C++.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$top/build}
nm -D --defined-only "$build/libkvpool.so" | awk '$3 !~ /^kvp_/ {print "libkvpool.so exports " $3; bad = 1} END {exit bad}'
nm -D --defined-only "$build/libkvattn.so" | awk '$3 !~ /^kvattn_/ {print "libkvattn.so exports " $3; bad = 1} END {exit bad}'
if command -v g++ >/dev/null; then
	for std in c++11 c++17 c++20; do # the macros for initialisers too
		printf '%s\n' '#include "kvpool.h"' '#include "kvattn.h"' 'static const struct kvp_kernels kernels = KVP_KERNELS_OF_KVATTN;' \
			'int main() { return kvp_deadline_ms(0) == 0 && kernels.size; }' |
			g++ -std=$std -pedantic -Wall -Wextra -Werror -I"$top/include" -fsyntax-only -x c++ -
	done
fi
echo "only our own names"
