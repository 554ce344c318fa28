#!/usr/bin/env bash
# kvpool-test: static timeout=300
# An engine in a container of its own (user, mount, pid, ipc and network namespaces, a root file system without /dev/shm and
# /proc of the host), with only the socket's directory mounted into it, shares a prompt with one on the host.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$top/build}
case $build in /*) ;; *) build=$top/$build ;; esac
dir=$(mktemp -d)
name=containers-$$
daemon=
finish() {
	[ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || true
	"$build/kvctl" purge --name "$name" >/dev/null 2>&1 || true
	rm -r "$dir"
}
trap finish EXIT

# what a container runtime does, in small. $1: socket's directory, $2: new root; then the engine's arguments
contained() {
	unshare --user --map-root-user --mount --pid --fork --ipc --net --propagation private bash -euc '
		sockets=$1 root=$2 build=$3 data=$4
		shift 4
		mount -t tmpfs -o mode=0755 container "$root"
		mkdir -p "$root"/{usr,run/kvpool,engine,model,dev/shm,tmp}
		for link in bin lib lib64; do [ ! -L "/$link" ] || ln -s "usr/$link" "$root/$link"; done
		for place in "/usr usr" "$build engine" "$data model"; do
			mount --bind ${place% *} "$root/${place#* }"
			mount -o remount,bind,ro "$root/${place#* }"
		done
		mount --bind "$sockets" "$root/run/kvpool"
		mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
		test -z "$(ls "$root/dev/shm")" && test ! -e "$root/proc"
		LD_LIBRARY_PATH=/engine exec chroot "$root" /engine/kvengine --model /model/kjv.kvm --prompt-file /model/prompt.txt "$@"
	' contained "$1" "$2" "$build" "$top/tests/data/model" "${@:3}"
}
here() {
	"$build/kvengine" --model "$top/tests/data/model/kjv.kvm" --prompt-file "$top/tests/data/model/prompt.txt" "$@"
}
number() { # of the engine's JSON
	/usr/bin/python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"
}

mkdir "$dir/run" "$dir/root"
if ! unshare --user --map-root-user --mount --pid --fork --ipc --net true 2>/dev/null; then
	echo "this kernel makes no user namespaces here (kernel.unprivileged_userns_clone, or the container's rules)"
	exit 77
fi
[ -L /lib ] || { echo "a host whose /lib is no link to /usr/lib"; exit 77; }
"$build/kvpoold" --socket "$dir/run/kvpoold.sock" --name "$name" --pool 8M --slab 1M --free-percent 0 --spill off 2>"$dir/log" &
daemon=$!
until "$build/kvctl" ping --socket "$dir/run/kvpoold.sock" >/dev/null 2>&1; do
	kill -0 "$daemon" || { cat "$dir/log"; exit 1; }
	sleep 0.05
done

here --no-pool --json >"$dir/alone"
want=$(number "$dir/alone" text)
contained "$dir/run" "$dir/root" --json >"$dir/first"
here --socket "$dir/run/kvpoold.sock" --json >"$dir/second"
contained "$dir/run" "$dir/root" --json >"$dir/third"
for run in first second third; do
	[ "$(number "$dir/$run" text)" = "$want" ] || { echo "the $run run tells something else"; cat "$dir/$run"; exit 1; }
done
[ "$(number "$dir/first" reused_ram)" = 0 ] || { echo "the first run found something"; exit 1; }
for run in second third; do
	[ "$(number "$dir/$run" reused_ram)" -ge 128 ] || { echo "the $run run reused nothing"; cat "$dir/$run"; exit 1; }
done
# the container had its own /dev/shm all along, and the network of nobody
echo "container -> host -> container: $(number "$dir/second" reused_ram) and $(number "$dir/third" reused_ram) tokens shared"
