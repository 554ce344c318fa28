#!/usr/bin/env bash
# kvpool-test: static timeout=120
# The README's first program compiles as a user would compile it, and does what the README says, with a daemon and without; and the
# tests that the daemon's notes name as those of a fault and its neighbours are there.
name=readme-$$
. "$(dirname "$0")/pool.sh"
named=$(sed -n '/^## Faults and their neighbours/,/^## Rejected/p' "$top/daemon/README.md" | grep -o '`[A-Za-z0-9_/.]*`' | tr -d '`' | sort -u)
[ "$(wc -w <<<"$named")" -gt 40 ]
for test in $named; do
	case $test in
	tests/*) [ -x "$top/$test" ] ;;
	*) grep -rqw --include='test_*.c' -e "static void $test" "$top/tests" ;;
	esac || { echo "daemon/README.md names $test, which is no test"; exit 1; }
done
awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' "$top/README.md" >"$dir/first.c"
cmp "$dir/first.c" "$top/tests/data/first.c"
cc -Wall -Wextra -I"$top/include" "$dir/first.c" -L"$build" -lkvpool -Wl,-rpath,"$build" -o "$dir/first"
"$dir/first" 2>"$dir/why" | grep -qx 'without the pool: 0 of 100 tokens reused'
grep -q '^first: .*kvpoold' "$dir/why" || { cat "$dir/why"; exit 1; }
pool_start --pool 16M
"$dir/first" | grep -qx 'attached: 0 of 100 tokens reused'
"$dir/first" | grep -qx 'attached: 96 of 100 tokens reused'
echo "as the README says"
