#!/usr/bin/env bash
# kvpool-test: static timeout=600
# Programs started in odd surroundings: input, output and errors closed or full, no environment, paths with spaces and letters
# of other scripts, relative ones, umask 0 and 077, a locale that is not there.  Nothing is written where it does not belong, each says
# by its status what became of it, and what it prints as JSON is JSON.
set -u
kvctl=$BUILD/kvctl
dir="$TMPDIR/ein Ort für日本 's"
name=surroundings-$$
fault() {
	echo "FAILED: $*"
	exit 1
}
mkdir -p "$dir/sp ill" && cd "$dir" || exit 1
finish() {
	[ -z "${pid:-}" ] || kill -9 "$pid" 2>/dev/null
	cd / && sleep 0.2
	"$kvctl" purge --name "$name" >/dev/null 2>&1
}
trap finish EXIT

begin() { # WORD...: run the daemon so
	( umask "${mask:-022}"; exec setpriv --pdeathsig KILL "$@" "$BUILD/kvpoold" --socket "$dir/s" --name "$name" --pool 4M --slab 256K --spill "$dir/sp ill:16M" ) \
		<&- >&- 2>&- &
	pid=$!
	"$kvctl" ping --timeout 60 --socket "$dir/s" >/dev/null || fault "kvpoold does not serve ($*)"
}

# a daemon without anything open, whatever the umask: what it logs goes nowhere, not into the pool
for mask in 000 077 022; do
	begin env -i LC_ALL=xx_YY.nothing TZ=Nowhere/None
	kill -USR1 "$pid"
	kill -HUP "$pid"
	for fd in 0 1 2; do
		[ "$(readlink "/proc/$pid/fd/$fd")" = /dev/null ] || fault "descriptor $fd of kvpoold is $(readlink "/proc/$pid/fd/$fd")"
	done
	"$kvctl" check --socket "$dir/s" >/dev/null || fault "kvctl check with umask $mask: $("$kvctl" check --socket "$dir/s" 2>&1)"
	! grep -aq kvpoold "/dev/shm/kvpool.$name" && head -c 36 "/dev/shm/kvpool.$name" | grep -qx '[0-9a-f-]\{36\}' ||
		fault "the pool's file holds $(head -c 80 "/dev/shm/kvpool.$name" | od -c | head -3)"
	uuid=$(head -c 36 "/dev/shm/kvpool.$name")
	[ "${before:-$uuid}" = "$uuid" ] || fault "a start began the pool anew"
	before=$uuid
	find /dev/shm -name "kvp-$uuid-*" -perm /037 | grep . && fault "objects open to others with umask $mask"
	kill -9 "$pid"
	wait "$pid" 2>/dev/null
done
begin env

# an engine, so that there is something to tell of; its own output is closed
head -c 4096 /dev/zero >totals
( exec setpriv --pdeathsig KILL "$BUILD/test/prog_worker" -b 4096 "$dir/s" odd-name 1 totals ) </dev/null >engine.log 2>&1 &
engine=$!
for _ in $(seq 600); do
	"$kvctl" ns --socket "$dir/s" 2>/dev/null | grep -q odd-name && break
	sleep 0.1
done

looks=("stats" "stats --json" "stats --post-mortem" "ns" "ns --json" "clients" "clients --json" "ping" "store list" "store list --json" "help stats" "--version")
for words in "${looks[@]}"; do
	read -ra argv <<<"$words"
	case $words in help*|--version) at=() ;; *) at=(--socket "$dir/s") ;; esac
	"$kvctl" "${argv[@]}" "${at[@]}" >out 2>err </dev/null || fault "kvctl $words: status $?: $(cat err)"
	[ -s err ] && fault "kvctl $words says: $(cat err)"
	case $words in *json) python3 -c 'import json,sys; json.load(open("out", encoding="utf-8"))' || fault "kvctl $words prints no JSON" ;; esac
	env -i "$kvctl" "${argv[@]}" "${at[@]}" >/dev/null 2>&1 || fault "kvctl $words without an environment: status $?"
	LC_ALL=xx_YY.nothing "$kvctl" "${argv[@]}" "${at[@]}" >/dev/null 2>&1 <&- || fault "kvctl $words with no input and an unknown locale: status $?"
	# output that nobody takes is a failure, and only that
	"$kvctl" "${argv[@]}" "${at[@]}" >/dev/full 2>err
	[ $? = 5 ] && grep -q "standard output took not all" err || fault "kvctl $words >/dev/full: $(cat err)"
	"$kvctl" "${argv[@]}" "${at[@]}" >&- 2>err
	[ $? = 5 ] || fault "kvctl $words with its output closed: $(cat err)"
	"$kvctl" "${argv[@]}" "${at[@]}" <&- >&- 2>&-
	[ $? = 5 ] || fault "kvctl $words with nothing open"
	"$kvctl" "${argv[@]}" "${at[@]}" 2>err | true
	grep -qi "signal\|assert\|backtrace" err && fault "kvctl $words into a closed pipe: $(cat err)"
done
"$kvctl" stats --json --socket "$dir/s" >out || fault "kvctl stats --json"
python3 - "$dir" <<'P' || fault "kvctl stats --json names other paths than there are"
import json, sys
stats = json.load(open("out", encoding="utf-8"))
assert stats["pool"]["socket"] == sys.argv[1] + "/s", stats["pool"]["socket"]
assert sys.argv[1] + "/sp ill" in json.dumps(stats, ensure_ascii=False), "spill"
P
# by a relative path, and by KVPOOL_SOCKET; an empty one is none
"$kvctl" ping --socket s >/dev/null || fault "a relative socket"
"$kvctl" stats --socket ./s >/dev/null || fault "a relative socket with a dot"
KVPOOL_SOCKET=$dir/s "$kvctl" stats >/dev/null || fault "KVPOOL_SOCKET"
"$kvctl" drain --name "$name" --deadline 20 >/dev/null || fault "drain by name"
# many at once
for _ in 1 2 3 4 5 6 7 8; do
	"$kvctl" check --socket "$dir/s" >/dev/null 2>&1 &
	jobs+=($!)
	"$kvctl" evict 1 --socket "$dir/s" >/dev/null 2>&1 &
done
for job in "${jobs[@]}"; do
	wait "$job" || fault "kvctl check beside others: status $?"
done
# a language model with nothing to print to ends and says so by its status, and writes into nobody's memory
if [ -x "$BUILD/kvengine" ]; then
	model=$TOP/tests/data/model
	"$BUILD/kvengine" --model "$model/kjv.kvm" --prompt-file "$model/prompt.txt" --steps 4 --socket "$dir/s" <&- >&- 2>&-
	status=$?
	[ $status -gt 0 ] && [ $status -lt 126 ] || fault "kvengine with nothing open ends with status $status"
	"$BUILD/kvengine" --model "$model/kjv.kvm" --prompt-file "$model/prompt.txt" --steps 4 --socket "$dir/s" >/dev/full 2>err
	status=$?
	[ $status -gt 0 ] && [ $status -lt 126 ] || fault "kvengine >/dev/full ends with status $status"
fi
kill -0 "$engine" 2>/dev/null || fault "the engine ended: $(cat engine.log)"
kill -9 "$engine"
"$kvctl" check --socket "$dir/s" >/dev/null || fault "kvctl check at the end"
echo "surroundings: ok"
