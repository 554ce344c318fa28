#!/usr/bin/env bash
# kvpool-test: parallel static timeout=240
# make lint: the kept list is well formed, each tool finds what was planted for it, in its function, what is kept is not said
# again, and a kept line that keeps nothing is.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$top/tests/lint/run" --check
mkdir -p "$dir/daemon" "$dir/tests/lint"
cp "$top/.clang-tidy" "$dir/"
cat >"$dir/daemon/planted.c" <<'C'
#include <stdlib.h>
#include <string.h>

int leaks(int n)
{
	int *p = malloc(sizeof(*p)), *kept = p;

	if (!p)
		return 0;
	*kept = n;
	return *p;
}

int overruns(int i)
{
	int four[4] = {i, i, i, i};

	return four[4];
}

int compares(const char *a)
{
	return strcmp(a, "x") == 2;
}
C
lint() { LINT_TOP=$dir LINT_TOOLS=$1 BUILD=$dir/build "$top/tests/lint/run" >"$dir/said" 2>&1; }
wrong() { echo "$1"; cat "$dir/said"; exit 1; }
looked=
for planted in gcc:leaks:analyzer-malloc-leak cppcheck:overruns:arrayIndexOutOfBounds \
	clang-tidy:compares:bugprone-suspicious-string-compare clang-tidy:leaks:clang-analyzer-unix.Malloc; do
	tool=${planted%%:*} entry=daemon/planted.c:${planted#*:}
	command -v "$tool" >/dev/null || { echo "$tool is not installed: not looked at"; continue; }
	: >"$dir/tests/lint/kept"
	lint "$tool" && wrong "$tool does not find $entry"
	grep -q "^daemon/planted.c:[0-9]*: .* \[${entry##*:}\] in $(echo "$entry" | cut -d: -f2)$" "$dir/said" || wrong "no $entry in:"
	# all that it says of the planted file, kept
	sed -n 's/^\(daemon.planted.c\):[0-9]*: .* \[\(.*\)\] in \(.*\)$/\1:\3:\2: planted for this test/p' "$dir/said" | sort -u >"$dir/tests/lint/kept"
	lint "$tool" || wrong "$tool: what is kept is said all the same:"
	tail -1 "$dir/said" | grep -qE '^lint: ok 1 files, [1-9][0-9]* kept findings$' || wrong "no count in the end:"
	echo "daemon/planted.c:compares:${entry##*:}x: this was mended long ago" >>"$dir/tests/lint/kept"
	lint "$tool" && wrong "a kept line that keeps nothing is taken"
	grep -q "planted.c:compares:${entry##*:}x keeps nothing any more" "$dir/said" || wrong "it is not named:"
	looked="$looked $tool"
done
for bad in 'daemon/planted.c:leaks:analyzer-malloc-leak:' 'daemon/planted.c:leaks: a reason long enough' \
	'daemon/none.c:leaks:check: a reason long enough' 'daemon/planted.c:nowhere:check: a reason long enough'; do
	echo "$bad" >"$dir/tests/lint/kept"
	LINT_TOP=$dir "$top/tests/lint/run" --check >"$dir/said" && wrong "the kept list may say \"$bad\""
done
echo "found and kept by$looked"
