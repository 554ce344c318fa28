# pool.sh - a pool of a script's own, to be sourced with $name set: $top, $build, $dir, and pool_start OPTION...
#
# Its daemon ($daemon; empty: there is none) and all it left are gone at the end; who has more to end traps EXIT again and
# calls pool_end last.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$top/build}" && pwd)
dir=$(mktemp -d)
daemon=
export KVPOOL_SOCKET=$dir/sock

pool_start() {
	"$build/kvpoold" --socket "$KVPOOL_SOCKET" --name "$name" "$@" 2>>"$dir/log" &
	daemon=$!
	for _ in $(seq 200); do "$build/kvctl" ping >/dev/null 2>&1 && break; sleep 0.05; done
}

# $1: the signal, TERM else
pool_end() {
	[ -z "$daemon" ] || kill -CONT $daemon 2>/dev/null || :
	[ -z "$daemon" ] || kill "-${1:-TERM}" $daemon 2>/dev/null || :
	wait 2>/dev/null || :
	"$build/kvctl" purge --name "$name" >/dev/null 2>&1 || :
	rm -rf "$dir"
}
trap pool_end EXIT
