#!/usr/bin/env bash
# kvpool-test: timeout=180
# Of two drives without a file system one is pulled and plugged in again: the other serves, and then everything is there, blocks
# of the one whose elders lie in the other too.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$top/build}" && pwd)
dir=$(mktemp -d)
name=pulled-$$
drives=(/dev/kvpool-$$-a /dev/kvpool-$$-b) loops=() daemon=
clean() {
	[ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || true
	"$build/kvctl" purge --name "$name" >/dev/null 2>&1 || true
	rm -f "${drives[@]}"
	for loop in "${loops[@]}"; do losetup -d "$loop"; done
	rm -rf "$dir"
}
trap clean EXIT
node() { mknod -m 600 "$1" b $((0x$(stat -c %t "$2"))) $((0x$(stat -c %T "$2"))); }
for i in 0 1; do
	truncate -s 64M "$dir/disk$i"
	loop=$(losetup -f --show "$dir/disk$i" 2>/dev/null) || { echo "no loop devices"; exit 77; }
	loops+=("$loop")
	node "${drives[i]}" "$loop" 2>/dev/null && : <"${drives[i]}" || { echo "no devices can be made"; exit 77; }
done
mkdir "$dir/ns"
export KVPOOL_SOCKET=$dir/sock
"$build/kvpoold" --socket "$KVPOOL_SOCKET" --name "$name" --pool 4M --slab 1M --namespace-dir "$dir/ns" \
	--spill "${drives[0]}" --spill "${drives[1]}" 2>"$dir/log" &
daemon=$!
within() { # SECONDS COMMAND...
	local end=$((SECONDS + $1)); shift
	until "$@"; do [ $SECONDS -lt $end ] || { echo "in vain: $*"; cat "$dir/log"; exit 1; }; sleep 0.2; done
}
ping() { "$build/kvctl" ping >/dev/null 2>&1; }
second_is() {
	[ "$("$build/kvctl" stats --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["spill"]["stores"][1]["state"])')" = "$1" ]
}
ledger() { "$build/test/prog_ledger" "$KVPOOL_SOCKET" ledger "$@" || { echo "ledger $*: $?"; cat "$dir/log"; exit 1; }; }
within 60 ping
ledger write 0 800
"$build/kvctl" drain >/dev/null
ledger verify 0 800 0 800
rm "${drives[1]}"
within 60 second_is DOWN
ledger verify 0 800 0 0 5000
ledger write 800 900
node "${drives[1]}" "${loops[1]}"
within 60 second_is up
ledger verify 0 900 0 800
"$build/kvctl" check >/dev/null
echo "pulled and plugged in again"
