#!/usr/bin/env bash
# kvpool-test: parallel static
# The threat model names tests, and every one it names exists and is run.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
named=$(grep -o '`[a-z0-9]*_[a-z0-9_]*`' "$top/systemd/SECURITY.md" | tr -d '`' | sort -u | grep -v '^test_')
[ "$(echo "$named" | wc -l)" -ge 40 ] || { echo "the threat model names hardly any test"; exit 1; }
for name in $named; do
	# once where it is defined, once in the list of its program
	[ "$(cat "$top"/tests/unit/*.c "$top"/tests/system/*.c | grep -cw "$name")" -ge 2 ] ||
		{ echo "systemd/SECURITY.md names a test that is not run: $name"; exit 1; }
done
echo "the threat model's $(echo "$named" | wc -l) tests are there"
