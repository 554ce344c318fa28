#!/usr/bin/env bash
# kvpool-test: static timeout=120
# The README's first program compiles as a user would compile it, and does what the README says, with a daemon and without.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$top/build}" && pwd)
dir=$(mktemp -d)
name=readme-$$
trap 'kill $daemon 2>/dev/null; wait 2>/dev/null; "$build/kvctl" purge --name $name >/dev/null 2>&1; rm -rf "$dir"' EXIT
awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' "$top/README.md" >"$dir/first.c"
cmp "$dir/first.c" "$top/tests/data/first.c"
cc -Wall -Wextra -I"$top/include" "$dir/first.c" -L"$build" -lkvpool -Wl,-rpath,"$build" -o "$dir/first"
export KVPOOL_SOCKET=$dir/sock
"$dir/first" | grep -qx 'no daemon: 0 of 100 tokens reused'
"$build/kvpoold" --socket "$KVPOOL_SOCKET" --name $name --pool 16M 2>"$dir/log" &
daemon=$!
for _ in $(seq 200); do "$build/kvctl" ping >/dev/null 2>&1 && break; sleep 0.05; done
"$dir/first" | grep -qx 'attached: 0 of 100 tokens reused'
"$dir/first" | grep -qx 'attached: 96 of 100 tokens reused'
echo "as the README says"
