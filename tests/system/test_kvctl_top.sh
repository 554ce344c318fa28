#!/usr/bin/env bash
# kvpool-test: static timeout=240
# kvctl top on a real terminal (tmux): what it shows in three sizes, its keys, a daemon that hangs and dies, and that the terminal is given back.
name=top-$$
. "$(dirname "$0")/pool.sh"
tm() { tmux -f /dev/null -S "$dir/tmux" "$@"; }
trap 'tm kill-server >/dev/null 2>&1 || :; pool_end KILL' EXIT
pane() { tm capture-pane -p -t t; }
# wait until the screen has this; else the screen is printed
shows() { for _ in $(seq 300); do pane | grep -qE -- "$1" && return 0; sleep 0.1; done; echo "no \"$1\" on:"; pane; return 1; }
hides() { for _ in $(seq 300); do pane | grep -qE -- "$1" || return 0; sleep 0.1; done; echo "still \"$1\" on:"; pane; return 1; }
key() { tm send-keys -t t "$@"; }
size() { tm resize-window -t t -x "$1" -y "$2"; }
narrow() { pane | awk -v w="$1" 'length($0) > w { print "too wide: " $0; exit 1 }'; }
begin() { key "clear; \"$build/kvctl\" top --name $name --every 0.2; echo gave \$? back" Enter; }

mkdir "$dir/spill"
pool_start --pool 32M --spill "$dir/spill:64M"

# without a terminal: a page of text
"$build/kvctl" top --once >"$dir/once" </dev/null
grep -q "^kvpool $name: serving" "$dir/once"
grep -q '^no clients' "$dir/once"
awk 'length($0) > 80 { print "80 columns: " $0; exit 1 }' "$dir/once"
"$build/kvctl" top --every never 2>"$dir/said" && { echo "--every never was taken"; exit 1; }
grep -q -- --every "$dir/said"
"$build/kvctl" top --name "$name-not-there" >"$dir/none" 2>&1 </dev/null && { cat "$dir/none"; exit 1; }

command -v tmux >/dev/null || { echo "tmux is not installed: only the text is tested"; exit 77; }
# a client that stays: blocks published, found again and held
cat >"$dir/client.c" <<'C'
#include <kvpool.h>
#include <string.h>
#include <unistd.h>
int main(void)
{
	struct kvp_open_opts open = {.size = sizeof(open), .connect_timeout_ms = 5000};
	struct kvp_client *c;
	struct kvp_ns *ns;
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {.size = sizeof(opts), .name = "chat", .owner_uid = KVP_UID_SELF, .desc = &desc};
	struct kvp_view view;

	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, 16, 0, 0, 0, 0);
	desc.block_bytes = 65536;
	strcpy(desc.engine, "top/1");
	if (kvp_open(&open, &c) < 0 || kvp_ns_open(c, &opts, &ns) < 0)
		return 1;
	for (unsigned i = 0;; i = (i + 1) % 200) {
		struct kvp_key key = {.w = {(i + 1) * 0x9e3779b97f4a7c15ull, 7}};
		struct kvp_block_ref block;
		struct kvp_publish_item item = {.key = key, .block = &block, .used_tokens = 16, .used_bytes = 65536};
		uint8_t result;

		if (kvp_acquire(ns, &key, 1, 0, kvp_deadline_ms(1000), &view) == 1) {
			if (i) /* the first one it keeps */
				kvp_release(&view, 1);
		} else if (kvp_reserve(ns, 1, 0, kvp_deadline_ms(1000), &block) == 1) {
			memset(block.data, (int)i, 65536);
			kvp_publish(ns, &item, 1, &result);
			kvp_abandon(&block, 1);
		}
		usleep(2000);
	}
}
C
cc -I"$top/include" "$dir/client.c" -L"$build" -lkvpool -Wl,-rpath,"$build" -o "$dir/topclient"
tm new-session -d -s t -x 80 -y 24 "env B=$build PS1='\$ ' TERM=screen LC_ALL=C.UTF-8 bash --norc --noprofile"
tm new-window -d -n client "KVPOOL_SOCKET=$KVPOOL_SOCKET $dir/topclient"

begin
shows "^kvpool $name: serving"
shows '^DRAM   \[[#+=]'
shows '^SPILL  \[.*up$'
shows '^HITS   \[#.* of [1-9].* blocks/s'
shows 'hold [0-9]+ (s|min), by topclient'
shows '^chat '
shows '^topclient '
shows 'q quit'
shows 'ASKED/s  DRAM SPILL$'
narrow 80
pane >"$dir/pane80"
key c; shows '^CURVE  .*of tokens found'; key c; hides '^CURVE'
key '?'; shows 'this list'; key '?'; hides 'this list'
key s; shows 'sort: size'; key s; shows 'sort: holds'; key s; shows 'sort: name'; key s; shows 'sort: use'
key p; shows PAUSED; key p; hides PAUSED
key Tab; shows 'Tab namespaces'
key Enter; shows 'Esc all'; shows '^chat '; key Escape; shows 'Enter inside'
size 200 60; shows '= evictable'; shows '^CURVE'; shows '^topclient'; narrow 200
pane >"$dir/pane200"
size 40 10; shows '^DRAM'; hides '^CURVE'; shows 'OLDEST  DRAM$'; narrow 40
pane >"$dir/pane40"
size 12 3; shows 'too small'
size 80 24; shows '^MISSES'
# a daemon that hangs, goes on, dies, and comes back
kill -STOP $daemon; shows 'not answering'
kill -CONT $daemon; shows ': serving'
kill -9 $daemon; wait $daemon 2>/dev/null || :
shows 'not answering.* gone'; shows '^chat '
pool_start --pool 32M --spill "$dir/spill:64M"
shows ': serving'
# every way out leaves a terminal that echoes, with what was there before
key q; shows 'gave 0 back'
key 'echo is""there' Enter; shows '^isthere'
for signal in TERM INT HUP QUIT; do
	begin; shows 'q quit'
	kill -$signal "$(pgrep -f "kvctl top --name $name --every")"
	shows 'gave 0 back'
	key 'stty -a | grep -o " echo "' Enter; shows '^ echo *$'
done
# the pool is removed under it
begin; shows 'q quit'
"$build/kvctl" purge --name $name >/dev/null
daemon=
shows 'no pool'
key q; shows 'gave 0 back'
# a terminal nobody knows
key 'clear; TERM=nonsense "$B/kvctl" top; echo gave $? back' Enter
shows 'gave (1|127) back'
echo "shows the pool in every size, and gives the terminal back"
